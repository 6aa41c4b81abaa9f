//! `--dry-run`, with kubectl's values.

use clap::ValueEnum;

/// The flag of all commands that change something.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DryRunArgs {
    /// Change nothing: print what would be done; with server, the API server checks it, too.
    /// Without a value, it is server
    #[arg(
        long = "dry-run",
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "server"
    )]
    pub how: DryRun,
}

/// Whether a command changes the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// Make the changes.
    #[default]
    None,
    /// Print the changes. No request makes any.
    Client,
    /// Have the API server check the changes. It makes none.
    #[value(alias = "cluster")]
    Server,
}
