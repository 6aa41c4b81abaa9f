//! The commands `hostloop status`, `fsck`, `delete`, `events` and `probe`. Only `fsck --repair`,
//! `delete` and `probe write` change anything.

use std::io::{self, Write};

use serde::Serialize;

use crate::cli::PoolArgsError;
use crate::{kernel, storage};

pub mod delete;
pub mod events;
pub mod fsck;
pub mod inventory;
pub mod probe;
pub mod render;
pub mod status;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments contradict each other.
    #[error(transparent)]
    Arguments(#[from] PoolArgsError),
    /// The kernel does not report loop devices or mounts.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// The pools can't be opened for the repair.
    #[error("repairing: {0}")]
    Repair(#[from] storage::Error),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// Prints a result as JSON, or as these lines.
fn print<T: Serialize>(
    result: &T,
    json: bool,
    lines: impl Fn(&T) -> Vec<String>,
) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, result)?;
        return writeln!(out);
    }
    lines(result).iter().try_for_each(|line| writeln!(out, "{line}"))
}
