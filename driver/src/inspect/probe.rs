//! `hostloop probe`: what `kubectl hostloop check` runs inside pods. The image has no shell.
//!
//! `machine` looks at a node. The pods of `--live` run `write` and `verify`. The command is hidden,
//! because nothing else should use its output.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hostloop_report::machine::{DirectIoReport, FilesystemReport, LeftoverLoop, MachineReport};
use hostloop_terminal::terminal;
use sha2::{Digest, Sha256};

use crate::cli::{ProbeArgs, ProbeCommand};
use crate::inspect::inventory::{Contents, leftover_loops};
use crate::kernel::linux::Linux;
use crate::kernel::{Filesystems, LoopDevices};
use crate::record::now_ns;

/// The file that `write` makes.
const FILE: &str = "hostloop-check";
/// The file of every pool, which `machine` opens for direct reads.
const POOL_FILE: &str = "pool.json";
/// The number of hashes in the file: 1 MiB.
const HASHES: u32 = 32 << 10;

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A file can't be written or read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        source: io::Error,
    },
    /// The file has other data.
    #[error("{0} does not have the data that was written")]
    Differs(PathBuf),
    /// The report can't be printed.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

pub fn run(args: &ProbeArgs) -> Result<ExitCode, ProbeError> {
    match &args.probe {
        ProbeCommand::Machine { pool_roots } => {
            terminal::print_json_line(&machine(pool_roots))?;
        }
        ProbeCommand::Write { dir, word } => write(dir, word)?,
        ProbeCommand::Verify { dir, word } => verify(dir, word)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn machine(pool_roots: &[PathBuf]) -> MachineReport {
    let kernel = Linux::new();
    let filesystems = kernel.filesystems().into_iter();
    MachineReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        now_ns: now_ns(),
        missing: kernel.missing(),
        filesystems: filesystems
            .map(|(fs, offered)| FilesystemReport {
                name: fs.to_string(),
                missing: offered.err(),
            })
            .collect(),
        direct_io: pool_roots
            .iter()
            .map(|root| DirectIoReport {
                root: root.clone(),
                missing: direct_io(root).err(),
            })
            .collect(),
        leftover_loops: leftover(&kernel, pool_roots).unwrap_or_default(),
    }
}

/// Loop devices of other pools than these. None if a pool can't be read: a device may be its own.
fn leftover(kernel: &Linux, pool_roots: &[PathBuf]) -> Option<Vec<LeftoverLoop>> {
    let own = pool_roots
        .iter()
        .map(|root| Some(Contents::read(kernel, root).ok()?.id));
    let own = own.collect::<Option<_>>()?;
    Some(leftover_loops(kernel, &kernel.loops().ok()?, &own))
}

/// A filesystem without direct I/O refuses to open a file for it. Nothing is written.
fn direct_io(root: &Path) -> Result<(), String> {
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(root.join(POOL_FILE));
    opened.map(drop).map_err(|error| error.to_string())
}

/// Generates the file's content from a word. Different words give different data everywhere in the
/// file.
fn data(word: &str) -> Vec<u8> {
    (0..HASHES)
        .flat_map(|n: u32| {
            Sha256::new()
                .chain_update(n.to_be_bytes())
                .chain_update(word)
                .finalize()
        })
        .collect()
}

/// Writes the file and syncs it. An existing file is an error: it is another's.
fn write(dir: &Path, word: &str) -> Result<(), ProbeError> {
    let path = dir.join(FILE);
    write_new(dir, &path, &data(word)).map_err(|source| ProbeError::File { path, source })
}

fn write_new(dir: &Path, path: &Path, data: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(data)?;
    file.sync_all()?;
    File::open(dir)?.sync_all()
}

fn verify(dir: &Path, word: &str) -> Result<(), ProbeError> {
    let path = dir.join(FILE);
    let expected = data(word);
    // One byte more shows a longer file.
    let found = read(&path, expected.len() + 1).map_err(|source| ProbeError::File {
        path: path.clone(),
        source,
    })?;
    if found == expected {
        Ok(())
    } else {
        Err(ProbeError::Differs(path))
    }
}

/// Reads a file, and at most this many bytes of it.
fn read(path: &Path, most: usize) -> std::io::Result<Vec<u8>> {
    let mut found = Vec::with_capacity(most);
    File::open(path)?
        .take(most as u64)
        .read_to_end(&mut found)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_verified() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert!(matches!(verify(path, "a"), Err(ProbeError::File { .. })));
        write(path, "a").unwrap();
        assert!(
            matches!(write(path, "a"), Err(ProbeError::File { .. })),
            "overwritten"
        );
        verify(path, "a").unwrap();
        assert!(matches!(verify(path, "b"), Err(ProbeError::Differs(_))));
    }

    #[test]
    fn each_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let good = data("a");
        assert_eq!(good.len(), 1 << 20);
        let last = good.len() - 1;
        let mut flipped = good.clone();
        flipped[last] ^= 1;
        let longer = [&good[..], &[0]].concat();
        for bad in [&flipped, &good[..last], &longer] {
            std::fs::write(path.join(FILE), bad).unwrap();
            assert!(matches!(verify(path, "a"), Err(ProbeError::Differs(_))));
        }
        std::fs::write(path.join(FILE), good).unwrap();
        verify(path, "a").unwrap();
    }

    #[test]
    fn a_machine_reports_itself() {
        let dir = tempfile::tempdir().unwrap();
        let report = machine(&[dir.path().into()]);
        let text = serde_json::to_string(&report).unwrap();
        let report: MachineReport = serde_json::from_str(&text).unwrap();
        assert_eq!(report.version, env!("CARGO_PKG_VERSION"));
        let names: Vec<&str> = report
            .filesystems
            .iter()
            .map(|fs| fs.name.as_str())
            .collect();
        assert_eq!(names, ["ext4", "xfs", "btrfs"]);
        assert_eq!(report.direct_io[0].root, dir.path());
        assert!(report.direct_io[0].missing.is_some(), "there is no pool");
    }
}
