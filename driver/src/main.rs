//! The `hostloop` binary.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use hostloop_driver::cli::{Cli, Command, HostPathLine, SidecarLine, with_tips};
use hostloop_driver::inspect::{cuts, delete, events, fsck, pool_fault, probe, status};
use hostloop_driver::serve;
use hostloop_terminal::{exit, terminal};

fn main() -> ExitCode {
    // This reads FAILPOINTS; dropping it removes the failpoints.
    #[cfg(feature = "failpoints")]
    let _scenario = fail::FailScenario::setup();

    let parsed = translated(env::args_os().collect())
        .and_then(|line| Cli::try_parse_from(&line).map_err(|error| with_tips(&line, error)));
    exit::status("hostloop", parsed.map(|cli| perform(cli.command)))
}

/// A command line of other programs, as one of this program.
fn translated(line: Vec<OsString>) -> Result<Vec<OsString>, clap::Error> {
    let of_sidecars = SidecarLine::read(&line)
        .map_err(|error| Cli::command().error(ErrorKind::ValueValidation, error))?;
    if let Some(of_sidecars) = of_sidecars {
        if let Some(remark) = of_sidecars.remark() {
            terminal::warn(&remark);
        }
        return Ok(of_sidecars.line);
    }
    if let Some(of_host_path) = HostPathLine::read(&line, |name| env::var_os(name).is_some()) {
        terminal::warn(&of_host_path.remark());
        return Ok(of_host_path.line);
    }
    Ok(line)
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
        Command::Proxy(args) => {
            serve::proxy(&args).context("proxy")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::FaultDisks(args) => {
            serve::fault_disks(&args).context("fault-disks")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Status(options) => status::run(&options).context("status"),
        Command::Fsck(options) => Ok(fsck::run(&options)),
        Command::Delete(args) => delete::run(&args).context("delete"),
        Command::Cuts(args) => cuts::run(&args).context("cuts"),
        Command::Events(args) => events::run(&args).context("events"),
        Command::Probe(args) => probe::run(&args).context("probe"),
        Command::PoolFault(args) => pool_fault::run(&args).context("pool-fault"),
    }
}
