//! `fault`: lets the volumes of claims fail by an annotation, ends that, and shows it. `fault node` does
//! the same with the pools of a node.
//!
//! The driver on the volume's node reads the annotation, and says by events at the claim what
//! becomes of it. So the commands about claims need no right but those for claims and events.

use std::io;
use std::process::ExitCode;

use hostloop_api_objects::claim_fault::ClaimFaultError;

use super::api::ApiError;
use super::cluster::Cluster;

mod annotation;
mod claims;
mod class_fault;
mod clear;
mod fault_status;
mod list;
mod node;
mod rows;
mod set;
#[cfg(test)]
pub(crate) mod tests;
mod wait;

pub(super) use annotation::{annotate, annotation, asks_for_none};
pub(super) use claims::{ClaimArgs, SelectionError, is_bound, selected};
pub(super) use fault_status::{AwaitedFault, FaultProgress, FaultStatus, KnownEvents};
pub(super) use rows::{FaultRow, print};
pub(super) use wait::{INTERVAL, WaitArgs, until_said};

/// Arguments of `fault`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub command: FaultCommand,
}

/// The subcommands of `fault`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum FaultCommand {
    /// Let the volumes of claims fail
    Set(set::Args),
    /// End the faults of claims
    Clear(clear::Args),
    /// Show the claims that ask for a fault, and what became of it
    List(list::Args),
    /// Let the pools of a node fail, end that, or show it
    Node(node::Args),
}

/// Why `fault` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server can't be asked.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// There are no such claims.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The driver would refuse the fault.
    #[error("{fault}: {why}")]
    Fault {
        /// As the person has typed it.
        fault: String,
        #[source]
        why: ClaimFaultError,
    },
    /// No claim gets the fault.
    #[error("name a claim before the fault {0}, or select claims by their labels with -l")]
    NoClaim(String),
    /// Claims are both named and selected.
    #[error("-l selects claims by their labels: leave out {0}")]
    NamesAndLabels(String),
    /// Claims do not have what was set.
    #[error("claims without the fault: {0}; the column MESSAGE says why")]
    NotInForce(String),
    /// The faults of claims have perhaps not ended.
    #[error("claims with a fault that may go on: {0}; the column MESSAGE says why")]
    NotEnded(String),
    /// A pool of a node does not have what was set, or has what was cleared.
    #[error("node: {0}")]
    Node(#[from] node::NodeFaultError),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    match &args.command {
        FaultCommand::Set(args) => set::run(args, cluster).await,
        FaultCommand::Clear(args) => clear::run(args, cluster).await,
        FaultCommand::List(args) => list::run(args, cluster).await,
        FaultCommand::Node(args) => Ok(node::run(args, cluster).await?),
    }
}
