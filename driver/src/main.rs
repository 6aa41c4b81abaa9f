//! The `hostloop` binary.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::env;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use hostloop_driver::cli::{Cli, Command, HostPathLine, with_client_tip};
use hostloop_driver::inspect::{delete, events, fsck, probe, status};
use hostloop_driver::serve;
use hostloop_terminal::{exit, terminal};

fn main() -> ExitCode {
    // This reads FAILPOINTS; dropping it removes the failpoints.
    #[cfg(feature = "failpoints")]
    let _scenario = fail::FailScenario::setup();

    let mut line: Vec<_> = env::args_os().collect();
    if let Some(of_host_path) = HostPathLine::read(&line, |name| env::var_os(name).is_some()) {
        terminal::warn(&of_host_path.remark());
        line = of_host_path.line;
    }
    let parsed = Cli::try_parse_from(&line).map_err(|error| with_client_tip(&line, error));
    exit::status("hostloop", parsed.map(|cli| perform(cli.command)))
}

fn perform(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => {
            serve::serve(&args).context("serve")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(args) => {
            serve::run(&args).context("run")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Controllers(args) => {
            serve::controllers(&args).context("controllers")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Status(options) => status::run(&options).context("status"),
        Command::Fsck(options) => Ok(fsck::run(&options)),
        Command::Delete(args) => delete::run(&args).context("delete"),
        Command::Events(args) => events::run(&args).context("events"),
        Command::Probe(args) => probe::run(&args).context("probe"),
    }
}
