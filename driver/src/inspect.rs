//! The commands `hostloop status`, `fsck`, `delete`, `events` and `probe`. Only `fsck --repair`,
//! `delete` and `probe write` change anything.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::io;

use hostloop_terminal::terminal;
use serde::Serialize;

use crate::cli::PoolArgsError;
use crate::{kernel, storage};

pub mod delete;
pub mod events;
pub mod fsck;
pub mod inventory;
pub mod probe;
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
    if json {
        return terminal::print_json(result);
    }
    terminal::print(&lines(result))
}
