//! A node of a cluster, looked at from this machine.
//!
//! The first has the machine's own files. Each other one is in a mount namespace of its own: what is
//! at a path there is another file than here, and what is mounted there does not show in this
//! process's table.

use std::path::{Path, PathBuf};

use crate::cluster::Cluster;
use crate::leaks::{Mounted, mounted};
use crate::loops::{self, Loop};
use crate::machine;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name in the cluster.
    pub name: String,
    /// Kubelet's root, as the node's processes name it.
    pub kubelet_dir: PathBuf,
    /// Who is in its mount namespace; none where that is the machine's.
    process: Option<u32>,
}

impl Cluster {
    /// A node, counted from 1.
    pub fn on(&self, count: u32) -> Node {
        assert!(
            (1..=self.nodes).contains(&count),
            "there is no node {count}"
        );
        let process = (count > 1).then(|| {
            let file = self.dir.join(format!("pid/namespace-{count}"));
            let read = std::fs::read_to_string(&file).unwrap_or_default();
            let word = read.split(' ').next().unwrap_or_default();
            let process = word.parse();
            process.unwrap_or_else(|_| panic!("{}: {read:?}", file.display()))
        });
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
    /// Where this machine finds what the node has at a path, what is mounted there included.
    pub fn path(&self, path: &Path) -> PathBuf {
        match (self.process, path.strip_prefix("/")) {
            (Some(process), Ok(rest)) => PathBuf::from(format!("/proc/{process}/root")).join(rest),
            _ => path.to_path_buf(),
        }
    }

    /// What is mounted there, by the paths there.
    pub fn mounts(&self) -> Vec<Mounted> {
        let process = self.process.map_or("self".to_owned(), |p| p.to_string());
        let table = std::fs::read_to_string(format!("/proc/{process}/mountinfo"));
        mounted(&table.expect("the node is there"))
    }

    /// The loop devices over its files beneath a directory, and those that stand on one of them.
    pub fn loops_beneath(&self, dir: &Path) -> Vec<Loop> {
        loops::beneath_on(&self.path(Path::new("/")), dir)
    }

    /// Runs a command where the node's files are.
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
}
