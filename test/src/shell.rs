//! A person's shell on a cluster: commands of a page or of a script, as they are typed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::child;
use crate::cluster::Cluster;
use crate::machine::{self, root, text};

/// Prints the kubectl of the tests.
const FIND_KUBECTL: &str = r#". "$1/scripts/lib.sh" && need_kubectl && echo "$kubectl""#;

/// A shell with a kubectl that knows one cluster.
pub struct Shell {
    kubeconfig: PathBuf,
    /// The shell's own programs, and what kubectl keeps.
    dir: PathBuf,
}

impl Shell {
    /// A shell for this cluster. Its files are in this directory.
    pub fn of(cluster: &Cluster, dir: PathBuf) -> Shell {
        let shell = Shell {
            kubeconfig: cluster.kubeconfig(),
            dir,
        };
        std::fs::create_dir_all(shell.bin()).expect("a directory can be made");
        let found = bash()
            .args(["-c", FIND_KUBECTL, "bash", text(&root())])
            .output()
            .expect("bash can be run");
        let kubectl = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        assert!(found.status.success(), "{found:?}");
        let link = shell.bin().join("kubectl");
        std::os::unix::fs::symlink(kubectl, link).expect("a link can be made");
        shell
    }

    /// Gives the shell a program.
    pub fn has(&self, name: &str, content: &str) {
        machine::script(&self.bin().join(name), content);
    }

    /// Types these lines in this folder, with these variables. A line that fails ends them. Returns
    /// all that is printed; an error has it, too.
    pub fn try_types(
        &self,
        folder: &Path,
        variables: &[(&str, &str)],
        lines: &str,
    ) -> Result<String, String> {
        let path = std::env::var("PATH").expect("there is a PATH");
        let script = format!("set -euo pipefail\n{lines}");
        let output = bash()
            .current_dir(folder)
            .args(["-c", &script])
            .env("PATH", format!("{}:{path}", text(&self.bin())))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECACHEDIR", self.dir.join("cache"))
            .envs(variables.iter().copied())
            .output()
            .expect("bash can be run");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if output.status.success() {
            Ok(said)
        } else {
            Err(said)
        }
    }

    /// [`Shell::try_types`], but an error fails the test.
    #[track_caller]
    pub fn types(&self, folder: &Path, variables: &[(&str, &str)], lines: &str) -> String {
        self.try_types(folder, variables, lines)
            .unwrap_or_else(|said| panic!("{lines}\nprints:\n{said}"))
    }

    fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }
}

fn bash() -> Command {
    let mut bash = child::command(machine::which("bash").expect("scripts need it"));
    bash.env("HOSTLOOP_CACHE", machine::tool_cache());
    bash
}
