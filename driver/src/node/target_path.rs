//! Handles the paths of requests on disk. No operation is recursive or follows a symlink at the
//! last component. Kubelet made the directories above, but a pod may own what is there.

use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Error, Result};
use crate::kernel;
use crate::kernel::failpoint::effect;

/// What is at a path, looked at without following a symlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing.
    Missing,
    Directory,
    /// A regular file.
    File {
        /// True if the file has zero bytes.
        empty: bool,
    },
    /// Another file type, in a word.
    Other(&'static str),
}

/// A path as the mount table shows it: with its directory resolved and its last component
/// unchanged. If the directory does not exist, nothing is mounted there, and the path stays
/// unchanged.
pub(crate) fn place(path: &Path) -> Result<PathBuf> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(wrong(path, "is the root directory"));
    };
    match dir.canonicalize() {
        Ok(dir) => Ok(dir.join(name)),
        Err(e) if is_missing(&e) => Ok(path.to_owned()),
        Err(e) => Err(wrong(path, e)),
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
    )
}

/// The kind of file at a path.
pub(crate) fn kind(path: &Path) -> Result<Kind> {
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if is_missing(&e) => return Ok(Kind::Missing),
        Err(e) => return Err(wrong(path, e)),
    };
    let file_type = meta.file_type();
    Ok(if file_type.is_dir() {
        Kind::Directory
    } else if file_type.is_file() {
        Kind::File {
            empty: meta.len() == 0,
        }
    } else if file_type.is_symlink() {
        Kind::Other("a symbolic link")
    } else if file_type.is_block_device() {
        Kind::Other("a block device")
    } else {
        Kind::Other("neither a directory nor a regular file")
    })
}

/// Checks that a path is a directory.
pub(crate) fn directory(path: &Path) -> Result<()> {
    match kind(path)? {
        Kind::Directory => Ok(()),
        found => Err(wrong(path, unlike("a directory", found))),
    }
}

/// Makes a directory to mount on if it is missing (0750); true if it was. Its parent must exist:
/// the orchestrator makes it.
pub(crate) fn make_directory(path: &Path) -> Result<bool> {
    match kind(path)? {
        Kind::Directory => Ok(false),
        Kind::Missing => {
            let made = effect("target.mkdir")
                .and_then(|()| std::fs::DirBuilder::new().mode(0o750).create(path));
            made.map(|()| true).map_err(|e| making("mkdir", path, e))
        }
        found => Err(wrong(path, unlike("a directory", found))),
    }
}

/// Makes an empty file to bind a device node to if it is missing (0600); true if it was.
pub(crate) fn make_file(path: &Path) -> Result<bool> {
    match kind(path)? {
        Kind::File { empty: true } => Ok(false),
        Kind::File { empty: false } => Err(wrong(path, "is a file with something in it")),
        Kind::Missing => {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let made = effect("target.create").and_then(|()| options.open(path));
            made.map(|_| true).map_err(|e| making("create", path, e))
        }
        found => Err(wrong(path, unlike("a file", found))),
    }
}

/// Removes the empty directory or empty file of a publication. A missing path succeeds. Anything
/// else does not belong to the driver and stays.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let (op, removed) = match kind(path)? {
        Kind::Missing => return Ok(()),
        Kind::Directory => (
            "rmdir",
            effect("target.rmdir").and_then(|()| std::fs::remove_dir(path)),
        ),
        Kind::File { empty: true } => (
            "unlink",
            effect("target.unlink").and_then(|()| std::fs::remove_file(path)),
        ),
        Kind::File { empty: false } => {
            return Err(wrong(path, "is a file with something in it; left as it is"));
        }
        Kind::Other(what) => return Err(wrong(path, format!("is {what}; left as it is"))),
    };
    match removed {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
            Err(wrong(path, "is not empty; left as it is"))
        }
        removed => removed.map_err(|e| kernel::Error::io(op, path, e).into()),
    }
}

fn unlike(wanted: &str, found: Kind) -> String {
    match found {
        Kind::Missing => "does not exist".to_owned(),
        Kind::Directory => format!("is a directory, not {wanted}"),
        Kind::File { .. } => format!("is a file, not {wanted}"),
        Kind::Other(what) => format!("is {what}, not {wanted}"),
    }
}

fn making(op: &'static str, path: &Path, error: std::io::Error) -> Error {
    if is_missing(&error) {
        return wrong(path, "its directory does not exist");
    }
    kernel::Error::io(op, path, error).into()
}

/// An error for an unusable path.
pub(crate) fn wrong(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::Path {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    #[test]
    fn a_place_resolves_the_directory_and_not_the_last_component() {
        let dir = dir();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        symlink(root.join("real"), root.join("link")).unwrap();
        symlink("/etc", root.join("real/target")).unwrap();
        let table = [
            ("real/target", "real/target"),
            ("link/target", "real/target"),
            ("link/none", "real/none"),
            ("none/target", "none/target"),
        ];
        for (requested, expected) in table {
            let got = place(&root.join(requested)).unwrap();
            assert_eq!(got, root.join(expected), "{requested}");
        }
        std::fs::write(root.join("file"), "").unwrap();
        let below = place(&root.join("file/x")).unwrap();
        assert_eq!(kind(&below).unwrap(), Kind::Missing);
    }

    #[test]
    fn targets_are_made_once_and_never_over_a_symlink() {
        let dir = dir();
        let at = |name: &str| dir.path().join(name);
        assert!(make_directory(&at("d")).unwrap());
        assert!(!make_directory(&at("d")).unwrap());
        assert!(make_file(&at("f")).unwrap());
        assert!(!make_file(&at("f")).unwrap());
        symlink(at("d"), at("to-d")).unwrap();
        symlink(at("f"), at("to-f")).unwrap();
        symlink(at("none"), at("to-none")).unwrap();
        std::fs::write(at("full"), "x").unwrap();
        for name in ["to-d", "to-f", "to-none", "f", "none/below"] {
            refused!(make_directory(&at(name)), Error::Path { .. }, "{name}");
        }
        for name in ["to-d", "to-f", "to-none", "d", "full", "none/below"] {
            refused!(make_file(&at(name)), Error::Path { .. }, "{name}");
        }
        assert!(!at("none").exists());
    }

    #[test]
    fn only_what_is_empty_is_removed() {
        let dir = dir();
        let at = |name: &str| dir.path().join(name);
        make_directory(&at("d")).unwrap();
        make_file(&at("f")).unwrap();
        make_directory(&at("kept")).unwrap();
        std::fs::write(at("kept/data"), "x").unwrap();
        std::fs::write(at("full"), "x").unwrap();
        symlink(at("kept"), at("link")).unwrap();
        for name in ["d", "f", "missing", "missing/below"] {
            remove(&at(name)).unwrap();
            assert!(!at(name).exists(), "{name}");
        }
        for name in ["kept", "full", "link"] {
            refused!(remove(&at(name)), Error::Path { .. }, "{name}");
        }
        assert_eq!(std::fs::read(at("kept/data")).unwrap(), b"x");
        assert!(at("link").is_symlink());
    }
}
