//! Which nodes share a kernel, as the administrator says. In a cluster, the files are a ConfigMap that
//! kubelet mounts and updates, so they are read at each use.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_controllers::api::constants::{MAX_SHARING_NODE_NAME, MAX_SHARING_NODES};
use parking_lot::Mutex;

/// The longest name of a kernel, as of a label's value.
const MAX_KERNEL: usize = 63;

/// Nodes that share one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedKernel {
    /// The kernel's name, which the administrator chose.
    pub name: String,
    /// All nodes that share it, with the one that asked.
    pub nodes: BTreeSet<String>,
}

/// The directory that says which nodes share a kernel. Clones share what they have logged.
#[derive(Clone, Debug, Default)]
pub struct Kernels {
    dir: Option<PathBuf>,
    /// The error that the log has.
    logged: Arc<Mutex<Option<String>>>,
}

impl Kernels {
    /// The directory of `--kernels`; without one, no kernel is shared.
    pub fn at(dir: Option<PathBuf>) -> Kernels {
        Kernels {
            dir,
            ..Kernels::default()
        }
    }

    /// True if nodes may share a kernel.
    pub fn is_on(&self) -> bool {
        self.dir.is_some()
    }

    /// The kernel that a node shares. `None` if no file names the node, or one is wrong: the log then
    /// says what.
    pub fn of(&self, node: &str) -> Option<SharedKernel> {
        let dir = self.dir.as_deref()?;
        let kernels = read(dir);
        self.log(dir, kernels.as_ref().err());
        let mut kernels = kernels.ok()?.into_iter();
        kernels.find(|kernel| kernel.nodes.contains(node))
    }

    /// Logs an error once, until it is another one or over.
    fn log(&self, dir: &Path, error: Option<&String>) {
        let mut logged = self.logged.lock();
        if logged.as_ref() == error {
            return;
        }
        if let Some(error) = error {
            let dir = dir.display();
            tracing::error!(%dir, error, "no kernel is shared, because the list of them is wrong");
        }
        *logged = error.cloned();
    }
}

/// Reads the files of a directory. A ConfigMap's directory also has entries of kubelet's own, which
/// begin with two dots.
fn read(dir: &Path) -> Result<Vec<SharedKernel>, String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("..") {
            continue;
        }
        let content = std::fs::read_to_string(entry.path());
        let content = content.map_err(|error| format!("{name}: {error}"))?;
        files.push((name, content));
    }
    parse(files.iter().map(|(name, content)| (&**name, &**content)))
}

fn unreadable(error: io::Error) -> String {
    format!("the directory can't be read: {error}")
}

/// The kernels in these files, by name and content. An error says what is wrong in which file.
pub fn parse<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<SharedKernel>, String> {
    let mut kernels: Vec<SharedKernel> = Vec::new();
    for (name, content) in files {
        if !is_kernel_name(name) {
            return Err(format!(
                "{name:?} names no kernel: a name has up to {MAX_KERNEL} of a-z, 0-9, '.' and '-'"
            ));
        }
        // As the admission policies read it: a tab is in no name, and separates none.
        let words = content.split([' ', '\n']);
        let words = words.filter(|word| !word.is_empty());
        let nodes: BTreeSet<String> = words.map(str::to_owned).collect();
        if let Some(node) = nodes.iter().find(|node| !is_node_name(node)) {
            return Err(format!(
                "{name}: {node:?} names no node: a name has up to {MAX_SHARING_NODE_NAME} letters, \
                 digits, '.', '-' and '_', and spaces or new lines are between names"
            ));
        }
        if nodes.len() > MAX_SHARING_NODES {
            return Err(format!(
                "{name} has {} nodes: {MAX_SHARING_NODES} can share a kernel",
                nodes.len()
            ));
        }
        for other in &kernels {
            if let Some(node) = nodes.intersection(&other.nodes).next() {
                let other = &other.name;
                return Err(format!(
                    "node {node} is in {other} and in {name}: name it in one of them"
                ));
            }
        }
        kernels.push(SharedKernel {
            name: name.to_owned(),
            nodes,
        });
    }
    Ok(kernels)
}

/// True for a name that a kernel can have.
pub(super) fn is_kernel_name(name: &str) -> bool {
    (1..=MAX_KERNEL).contains(&name.len())
        && name
            .bytes()
            .all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-'))
}

/// True for a name that a node of a kernel can have.
pub(super) fn is_node_name(name: &str) -> bool {
    (1..=MAX_SHARING_NODE_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, nodes: &[&str]) -> SharedKernel {
        SharedKernel {
            name: name.to_owned(),
            nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
        }
    }

    #[test]
    fn files_name_the_nodes_of_kernels() {
        let sixteen: Vec<String> = (0..16).map(|n| format!("n{n}")).collect();
        let sixteen: Vec<&str> = sixteen.iter().map(String::as_str).collect();
        let full = sixteen.join(" ");
        let table = [
            (vec![], vec![]),
            (vec![("kernel", "")], vec![kernel("kernel", &[])]),
            (vec![("k", "a")], vec![kernel("k", &["a"])]),
            (
                vec![("k", " b  a\n\nc b\n")],
                vec![kernel("k", &["a", "b", "c"])],
            ),
            (
                vec![("k-1", "a b"), ("k.2", "c_d")],
                vec![kernel("k-1", &["a", "b"]), kernel("k.2", &["c_d"])],
            ),
            (vec![("k", &*full)], vec![kernel("k", &sixteen)]),
        ];
        for (files, expected) in table {
            assert_eq!(parse(files.clone()), Ok(expected), "{files:?}");
        }
    }

    #[test]
    fn wrong_files_are_refused() {
        let seventeen: Vec<String> = (0..17).map(|n| format!("n{n}")).collect();
        let seventeen = seventeen.join(" ");
        let (kernel, node) = ("k".repeat(64), "n".repeat(129));
        let table = [
            (vec![("", "a")], "names no kernel"),
            (vec![("K", "a")], "\"K\" names no kernel"),
            (vec![("a,b", "a")], "names no kernel"),
            (vec![(&*kernel, "a")], "names no kernel"),
            (vec![("k", "a a,b")], "k: \"a,b\" names no node"),
            (vec![("k", "../a")], "names no node"),
            (vec![("k", "a\tb")], "k: \"a\\tb\" names no node"),
            (vec![("k", "a\r\nb")], "names no node"),
            (vec![("k", &*node)], "names no node"),
            (vec![("k", &*seventeen)], "k has 17 nodes: 16 can share"),
            (
                vec![("k", "a b"), ("l", "c b")],
                "node b is in k and in l: name it",
            ),
        ];
        for (files, expected) in table {
            let error = parse(files.clone()).unwrap_err();
            assert!(error.contains(expected), "{files:?}: {error}");
        }
    }

    #[test]
    fn a_directory_is_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let kernels = Kernels::at(Some(dir.path().to_owned()));
        assert!(kernels.is_on() && !Kernels::default().is_on());
        assert_eq!(kernels.of("a"), None);
        // As kubelet does it: the files are links into a directory that it replaces.
        std::fs::create_dir(dir.path().join("..data")).unwrap();
        std::fs::write(dir.path().join("..data/k"), "a b").unwrap();
        std::os::unix::fs::symlink("..data/k", dir.path().join("k")).unwrap();
        assert_eq!(kernels.of("a"), Some(kernel("k", &["a", "b"])));
        assert_eq!(kernels.of("c"), None);
        std::fs::write(dir.path().join("..data/k"), "a b c").unwrap();
        assert_eq!(kernels.of("c"), Some(kernel("k", &["a", "b", "c"])));
        // One wrong file ends all sharing.
        std::fs::write(dir.path().join("l"), "a").unwrap();
        assert_eq!(kernels.of("c"), None);
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert_eq!(kernels.of("a"), None);
        assert_eq!(Kernels::at(None).of("a"), None);
    }
}
