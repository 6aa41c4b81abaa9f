//! The commands `hostloop status`, `fsck`, `delete`, `cuts`, `events`, `probe` and `pool-fault`. Only
//! `fsck --repair`, `delete`, `cuts`, `probe write` and `pool-fault` change anything.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::io;

use hostloop_terminal::terminal;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::cli::PoolArgsError;
use crate::{kernel, storage};

pub mod cuts;
pub mod delete;
pub mod events;
pub mod fsck;
pub mod inventory;
pub mod pool_fault;
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

/// Runs on this thread until the end of `work`.
fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    Ok(runtime.enable_all().build()?.block_on(work))
}

/// Resolves at the end of standard input.
async fn input_ends() {
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ended = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = ended.send(());
    });
    let _ = end.await;
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
