//! The arguments of fault rules.

use std::path::PathBuf;

use clap::Args;

/// Where the rules of RPC faults are.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Faults")]
pub struct FaultRulesArgs {
    /// Refuse, delay and lose the answers of RPCs by the rules of this YAML file, which is read
    /// again when it changes: see docs/rpc-faults.md [default: no faults]
    #[arg(long, value_name = "FILE")]
    pub fault_rules: Option<PathBuf>,
}
