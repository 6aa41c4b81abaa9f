//! A cluster's node, as this machine sees it.
//!
//! The first node has the machine's own files, unless the cluster has a layout. Every other node
//! has its own mount namespace: a path there may be another file than here, and this process's
//! mount table does not show its mounts.

use std::path::{Path, PathBuf};

use crate::PATIENCE;
use crate::cluster::{Cluster, wait_for};
use crate::leaks::{Mounted, mounted, mountinfo};
use crate::loop_devices::{self, Loop};
use crate::machine::{self, text};

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name in the cluster.
    pub name: String,
    /// Kubelet's root, as the node's processes name it.
    pub kubelet_dir: PathBuf,
    /// A process in the node's mount namespace; none if that is the machine's.
    process: Option<u32>,
}

impl Cluster {
    /// Returns a node, counted from 1.
    pub fn on(&self, count: u32) -> Node {
        assert!(
            (1..=self.nodes).contains(&count),
            "there is no node {count}"
        );
        let process =
            (count > 1 || self.first_is_apart).then(|| self.process(&format!("namespace-{count}")));
        Node {
            name: self.node(count),
            kubelet_dir: self.kubelet_dir.clone(),
            process,
        }
    }

    /// All nodes, in order.
    pub fn all_nodes(&self) -> Vec<Node> {
        (1..=self.nodes).map(|count| self.on(count)).collect()
    }
}

impl Node {
    /// The path on this machine of a node's file, including what is mounted on the node.
    pub fn path(&self, path: &Path) -> PathBuf {
        match (self.process, path.strip_prefix("/")) {
            (Some(process), Ok(rest)) => PathBuf::from(format!("/proc/{process}/root")).join(rest),
            _ => path.to_path_buf(),
        }
    }

    /// The node's mounts, by their paths on the node.
    pub fn mounts(&self) -> Vec<Mounted> {
        let process = self.process.map_or("self".to_owned(), |p| p.to_string());
        mounted(&mountinfo(process))
    }

    /// The loop devices over the node's files beneath a directory, and those that stand on one of
    /// them.
    pub fn loops_beneath(&self, dir: &Path) -> Vec<Loop> {
        loop_devices::beneath_on(&self.path(Path::new("/")), dir)
    }

    /// Runs a command in the node's mount namespace.
    pub fn try_run(&self, command: &[&str]) -> Result<String, String> {
        match (self.process, command) {
            (Some(process), _) => {
                let process = process.to_string();
                let enter = ["--target", &process, "--mount", "--"];
                machine::try_run("nsenter", &[&enter, command].concat())
            }
            (None, [tool, arguments @ ..]) => machine::try_run(tool, arguments),
            (None, []) => Err("no command".to_owned()),
        }
    }

    /// Does on the node what `uninstall --data` advises for these directories.
    pub async fn remove_data(&self, directories: &[&str]) {
        for directory in directories {
            let mounts = self.mounts();
            let beneath = |mount: &&Mounted| mount.at.starts_with(directory);
            for mount in mounts.iter().rev().filter(beneath) {
                self.run(&["umount", text(&mount.at)]);
            }
            self.run(&["rm", "-r", directory]);
        }
        for directory in directories {
            wait_for("the end of loop devices", PATIENCE, async || {
                match &self.loops_beneath(Path::new(directory))[..] {
                    [] => Ok(()),
                    left => Err(format!("{left:?}")),
                }
            })
            .await;
        }
    }

    /// [`Node::try_run`], but an error fails the test.
    fn run(&self, command: &[&str]) {
        self.try_run(command).unwrap_or_else(|why| panic!("{why}"));
    }
}
