//! `kubectl hostloop` on a cluster, as a person types it.

use std::path::PathBuf;
use std::process::Command;

use crate::child;
use crate::cluster::Cluster;
use crate::driver::built;

/// The client: `HOSTLOOP_CLIENT_BIN`, or the debug build of this workspace.
pub fn binary() -> PathBuf {
    built(
        "HOSTLOOP_CLIENT_BIN",
        "kubectl-hostloop",
        "cargo build -p hostloop-kubectl",
    )
}

/// The client with the administrator's kubeconfig.
pub struct Plugin<'c> {
    cluster: &'c Cluster,
    /// The driver's name, if it is not the usual one.
    driver: Option<&'c str>,
}

impl Plugin<'_> {
    /// The plugin for a cluster.
    pub fn of(cluster: &Cluster) -> Plugin<'_> {
        Plugin {
            cluster,
            driver: None,
        }
    }

    /// [`Plugin::of`], for a driver with another name.
    pub fn named<'c>(cluster: &'c Cluster, driver: &'c str) -> Plugin<'c> {
        Plugin {
            cluster,
            driver: Some(driver),
        }
    }

    /// The client.
    pub fn program(&self) -> PathBuf {
        binary()
    }

    /// The command `kubectl hostloop` with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = child::command(self.program());
        command
            .args(arguments)
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .envs(self.driver.map(|name| ("HOSTLOOP_DRIVERNAME", name)));
        command
    }

    /// Runs `kubectl hostloop` and returns what it prints, errors included, and whether it
    /// succeeds.
    pub fn run(&self, arguments: &[&str]) -> (String, bool) {
        let output = self
            .command(arguments)
            .output()
            .expect("the plugin can be run");
        let said = [output.stdout, output.stderr].concat();
        (
            String::from_utf8_lossy(&said).into_owned(),
            output.status.success(),
        )
    }

    /// It succeeds, and prints each of these words.
    #[track_caller]
    pub fn succeeds(&self, arguments: &[&str], words: &[&str]) -> String {
        let (said, succeeds) = self.run(arguments);
        assert!(succeeds, "{arguments:?}: {said}");
        assert_has(&said, words);
        said
    }

    /// It fails, and prints each of these words.
    #[track_caller]
    pub fn fails(&self, arguments: &[&str], words: &[&str]) {
        let (said, succeeds) = self.run(arguments);
        assert!(!succeeds, "{arguments:?} succeeds: {said}");
        assert_has(&said, words);
    }

    /// Removes hostloop and the definitions of the snapshot API, and waits until all of it is gone.
    pub fn uninstalls_all(&self) -> String {
        let said = self.succeeds(&["uninstall", "--yes", "--data", "--crds"], &["removed"]);
        let kinds = "namespace,storageclass,csidriver,clusterrole,clusterrolebinding,\
                     validatingadmissionpolicy,validatingadmissionpolicybinding";
        let list = [
            "get",
            kinds,
            "-l",
            "app.kubernetes.io/name=hostloop",
            "-o",
            "name",
        ];
        assert_eq!(self.cluster.kubectl(&list), "");
        said
    }

    /// [`Plugin::uninstalls_all`], and removes hostloop's data from the nodes as it says.
    pub async fn uninstalls_with_data(&self) {
        let said = self.uninstalls_all();
        let directories: Vec<&str> = said
            .lines()
            .filter_map(|line| {
                line.rsplit_once("rm -r ")
                    .map(|(_, directory)| directory.trim())
            })
            .collect();
        assert_eq!(directories.len(), 2, "the pool and the state: {said}");
        for node in self.cluster.all_nodes() {
            node.remove_data(&directories).await;
        }
    }
}

/// The text has each of these words.
#[track_caller]
pub fn assert_has(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}
