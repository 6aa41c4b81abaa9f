//! Runs `hostloop fault-disks`.

use hostloop_fault_disk::memory;
use hostloop_fault_disk::server::Server;

use super::error::Error;
use super::{descriptors, logging};
use crate::cli::FaultDisksArgs;

/// Serves fault disks until the process is killed, which is a power cut of all of them.
pub fn fault_disks(args: &FaultDisksArgs) -> Result<(), Error> {
    logging::start(&args.log)?;
    // Each disk has a few, and a connection as well.
    descriptors::raise();
    memory::lock()?;
    tracing::info!(socket = %args.socket.display(), "serving fault disks");
    Ok(Server::new(args.memory).run(&args.socket)?)
}
