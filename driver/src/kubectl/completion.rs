//! `completion`: a script that completes the command line in a shell.

use std::io;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, PLUGIN};

/// Arguments of `completion`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The shell
    pub shell: Shell,
}

pub(super) fn run(args: &Args) -> ExitCode {
    clap_complete::generate(args.shell, &mut Cli::command(), PLUGIN, &mut io::stdout());
    ExitCode::SUCCESS
}
