//! What `hostloop status` reports on this machine, for a driver without a cluster.
//!
//! The program of a node runs here as it does in the pods of a cluster.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use hostloop_report::image_map::ImageMap;
use hostloop_report::status::Report;
use serde::de::DeserializeOwned;

use crate::manifests::Pool;

/// The program of a node.
const PROGRAM: &str = "hostloop";

/// The pools of a driver on this machine.
#[derive(Clone, Debug)]
pub(super) struct LocalPools {
    /// The pools, as its flags name them.
    pub(super) pools: Vec<Pool>,
    /// The driver's directory for pools that are devices or images, if it is not the default.
    pub(super) state_dir: Option<PathBuf>,
}

/// Why this machine has no report.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The program can't be started.
    #[error("running {0:?}: {1}; put the program hostloop beside this one, or on the PATH")]
    Start(PathBuf, #[source] io::Error),
    /// The command failed.
    #[error("`hostloop status` failed: {0}")]
    Failed(String),
    /// The output is not a report.
    #[error("the report of `hostloop status` is unreadable ({0}); use two programs of one version")]
    Unreadable(#[from] serde_json::Error),
    /// The thread that waits for the command is gone.
    #[error(transparent)]
    Thread(#[from] tokio::task::JoinError),
}

impl LocalPools {
    /// Reads the report.
    pub(super) async fn report(&self) -> Result<Report, Error> {
        ask(self.arguments()).await
    }

    /// Reads where the blocks of these images are.
    pub(super) async fn image_maps(&self, ids: &[String]) -> Result<Vec<ImageMap>, Error> {
        let mut arguments = self.arguments();
        arguments.push(format!("--extents={}", ids.join(",")).into());
        ask(arguments).await
    }

    /// The arguments of `hostloop status`.
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["status".into(), "--json".into()];
        let pools = self.pools.iter().map(|pool| format!("--pool={pool}"));
        arguments.extend(pools.map(OsString::from));
        if let Some(directory) = &self.state_dir {
            arguments.push("--statedir".into());
            arguments.push(directory.into());
        }
        arguments
    }
}

/// Runs the program, and reads the JSON that it prints if it succeeds.
async fn ask<T: DeserializeOwned>(arguments: Vec<OsString>) -> Result<T, Error> {
    let program = program();
    #[expect(clippy::disallowed_methods, reason = "a person's command")]
    let mut command = Command::new(&program);
    command.args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await?;
    let output = output.map_err(|error| Error::Start(program, error))?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let why = if printed.is_empty() {
            output.status.to_string()
        } else {
            printed
        };
        return Err(Error::Failed(why));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The program beside this one, or else the one on the PATH.
fn program() -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name(PROGRAM));
    match beside {
        Ok(beside) if beside.is_file() => beside,
        _ => PROGRAM.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_the_flags_of_the_driver() {
        let pool = |word: &str| word.parse::<Pool>().unwrap();
        let mut local = LocalPools {
            pools: vec![pool("a=/p"), pool("b=/q,image=1Gi")],
            state_dir: None,
        };
        let flags = ["status", "--json", "--pool=a=/p", "--pool=b=/q,image=1Gi"];
        assert_eq!(local.arguments(), flags);
        local.state_dir = Some("/s".into());
        assert_eq!(local.arguments()[4..], ["--statedir", "/s"]);
    }
}
