//! `load`: puts an image archive into the nodes of a kind or minikube cluster.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use hostloop_terminal::color::{GOOD, QUIET, paint};
use hostloop_terminal::terminal;
use k8s_openapi::api::core::v1::Node;

use super::Cluster;
use super::api::{self, ApiError};
use super::distribution::Distribution;
use super::dry_run::{DryRun, DryRunArgs};

mod steps;

/// The archive that `scripts/image` makes.
const ARCHIVE: &str = "target/image/hostloop.tar";

/// Arguments of `load`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Uses kind or minikube if they are installed, otherwise the container engine that \
                  runs the nodes (docker, podman or nerdctl). Other clusters need a registry, or the \
                  import command of their distribution on each node."
)]
pub struct Args {
    /// A docker archive, as scripts/image makes
    #[arg(default_value = ARCHIVE)]
    pub archive: PathBuf,

    /// Only these nodes
    #[arg(long, value_name = "NODE,...", value_delimiter = ',')]
    pub nodes: Vec<String>,

    #[command(flatten)]
    pub dry_run: DryRunArgs,
}

/// Why `load` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The nodes can't be listed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The API server has no part in it.
    #[error(
        "--dry-run=server: the API server loads no image; --dry-run=client prints the commands"
    )]
    DryRunOnServer,
    /// The archive can't be read.
    #[error(
        "archive {}: {source}; make one with scripts/image or docker save, or name another",
        .archive.display()
    )]
    Archive { archive: PathBuf, source: io::Error },
    /// The cluster is neither kind nor minikube.
    #[error("{what}. On each node, run: {command} <ARCHIVE")]
    OtherCluster {
        /// What the cluster is.
        what: String,
        /// The command that loads an archive there.
        command: &'static str,
    },
    /// A node does not exist.
    #[error("the cluster has no node {name:?}; it has {}", .nodes.join(", "))]
    NoNode {
        /// The missing one.
        name: String,
        /// The cluster's nodes.
        nodes: Vec<String>,
    },
    /// No program can reach the nodes.
    #[error("none of these programs is on the PATH: {}; install one of them", .0.join(", "))]
    NoProgram(Vec<&'static str>),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
    /// A program can't be started.
    #[error("starting {program}: {source}")]
    Start { program: String, source: io::Error },
    /// A program fails. It has said why itself.
    #[error("`{command}` failed ({status}); its message is above")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
    },
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    if args.dry_run.how == DryRun::Server {
        return Err(Error::DryRunOnServer);
    }
    check_archive(&args.archive)?;
    let nodes: Vec<Node> = api::list_all(&cluster.all()).await?;
    let distribution = Distribution::of_most(&nodes);
    let steps = steps::steps(distribution, &nodes, args, is_on_path)?;
    for step in &steps {
        terminal::print(&[paint(QUIET, &step.to_string())])?;
        if args.dry_run.how == DryRun::None {
            step.run()?;
        }
    }
    if args.dry_run.how == DryRun::Client {
        return Ok(ExitCode::SUCCESS);
    }
    let loaded = format!("{} {} is loaded", paint(GOOD, "✓"), args.archive.display());
    terminal::print(&[loaded])?;
    Ok(ExitCode::SUCCESS)
}

fn check_archive(archive: &Path) -> Result<(), Error> {
    let source = match archive.metadata() {
        Ok(meta) if meta.is_file() => return Ok(()),
        Ok(_) => io::Error::new(io::ErrorKind::InvalidInput, "is not a file"),
        Err(source) => source,
    };
    Err(Error::Archive {
        archive: archive.to_owned(),
        source,
    })
}

/// True if the PATH has a program of this name.
fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl steps::Step {
    /// Runs the command. Its output goes to the terminal. Blocks.
    fn run(&self) -> Result<(), Error> {
        let input = match &self.input {
            None => Stdio::null(),
            Some(archive) => std::fs::File::open(archive)
                .map_err(|source| Error::Archive {
                    archive: archive.clone(),
                    source,
                })?
                .into(),
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "a person's command on the person's cluster"
        )]
        let status = Command::new(&self.words[0])
            .args(&self.words[1..])
            .stdin(input)
            .status()
            .map_err(|source| Error::Start {
                program: self.words[0].clone(),
                source,
            })?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::Failed {
                command: self.to_string(),
                status: status.to_string(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("image.tar");
        for (path, says) in [
            (file.as_path(), "No such file"),
            (folder.path(), "is not a file"),
        ] {
            let error = check_archive(path).unwrap_err().to_string();
            assert!(
                error.contains(says) && error.contains("scripts/image"),
                "{error}"
            );
        }
        std::fs::write(&file, "x").unwrap();
        check_archive(&file).unwrap();
    }

    #[test]
    fn a_failing_command_is_named() {
        let step = |words: &[&str]| steps::Step {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            input: None,
        };
        step(&["true"]).run().unwrap();
        let error = step(&["false", "x"]).run().unwrap_err().to_string();
        assert!(
            error.starts_with("`false x` failed (exit status: 1)"),
            "{error}"
        );
        let error = step(&["/no/such/program"]).run().unwrap_err().to_string();
        assert!(error.starts_with("starting /no/such/program: "), "{error}");
    }

    #[test]
    fn a_command_reads_the_archive() {
        let folder = tempfile::tempdir().unwrap();
        let (archive, copy) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&archive, "bytes").unwrap();
        let words = ["tee", copy.to_str().unwrap()].map(str::to_owned).to_vec();
        steps::Step {
            words,
            input: Some(archive),
        }
        .run()
        .unwrap();
        assert_eq!(std::fs::read(&copy).unwrap(), b"bytes");
    }
}
