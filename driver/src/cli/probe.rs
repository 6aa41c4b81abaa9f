//! The arguments of `hostloop probe`, which `kubectl hostloop check` runs inside pods.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `hostloop probe`.
#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub probe: ProbeCommand,
}

/// The subcommands of `hostloop probe`.
#[derive(Clone, Debug, Subcommand)]
pub enum ProbeCommand {
    /// Report what this machine has, as JSON
    Machine {
        /// The root directory of a pool; repeat the flag for several pools
        #[arg(long = "pool-root", value_name = "DIR")]
        pool_roots: Vec<PathBuf>,
    },
    /// Write a file with data made from a word
    Write {
        /// The volume's directory
        dir: PathBuf,
        /// The word
        word: String,
    },
    /// Compare the file with the data made from the word
    Verify {
        /// The volume's directory
        dir: PathBuf,
        /// The word
        word: String,
    },
}
