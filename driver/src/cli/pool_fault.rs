//! The arguments of `hostloop pool-fault`, which `kubectl hostloop fault node` runs inside pods.

use clap::{Args, Subcommand};

use super::PoolArgs;

/// Arguments of `hostloop pool-fault`.
#[derive(Clone, Debug, Args)]
pub struct PoolFaultArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: PoolFaultCommand,

    /// The configured pools
    #[command(flatten)]
    pub pools: PoolArgs,
}

/// The subcommands of `hostloop pool-fault`. Each prints what the driver says then, as JSON.
#[derive(Clone, Debug, Subcommand)]
pub enum PoolFaultCommand {
    /// Give a pool a fault
    Set {
        /// The pool's name
        pool: String,
        /// The fault, such as full,for=5m
        fault: String,
    },
    /// End the fault of a pool, or of all
    Clear {
        /// The pool's name
        pool: Option<String>,
    },
    /// Print the faults that this node can do, and those of its pools
    List,
}
