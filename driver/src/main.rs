//! The `hostloop` binary.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::env;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use hostloop_driver::cli::{Cli, Command};
use hostloop_driver::inspect::render::terminal;
use hostloop_driver::inspect::{delete, events, fsck, probe, status};
use hostloop_driver::kubectl::{self, Program};
use hostloop_driver::serve;

/// The exit status for an invalid command line (EX_USAGE). clap's 2 has a meaning for `fsck`.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    // This reads FAILPOINTS; dropping it removes the failpoints.
    #[cfg(feature = "failpoints")]
    let _scenario = fail::FailScenario::setup();

    let line: Vec<_> = env::args_os().collect();
    let has_pools = env::var_os("HOSTLOOP_POOL").is_some_and(|pools| !pools.is_empty());
    let performed = match Program::of(&line, has_pools) {
        Program::Driver => Cli::try_parse_from(line).map(|cli| perform(cli.command)),
        Program::Completer => Ok(Ok(kubectl::complete(&line[1..]))),
        program => kubectl::parse(line, program)
            .map(|cli| kubectl::run(&cli, program).map_err(anyhow::Error::from)),
    };
    match performed {
        Ok(result) => result.unwrap_or_else(|error| {
            terminal::error(&format!("hostloop: {}", sentence(&error)));
            ExitCode::FAILURE
        }),
        // clap returns help and version as errors, too.
        Err(said) => match (said.print(), said.use_stderr()) {
            (Ok(()), false) => ExitCode::SUCCESS,
            (Ok(()), true) => ExitCode::from(USAGE),
            (Err(_), _) => ExitCode::FAILURE,
        },
    }
}

/// The error and its causes, each once: many messages already contain their cause.
fn sentence(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |said, cause| {
        let cause = cause.to_string();
        match said.as_str() {
            "" => cause,
            said if said.contains(&cause) => said.to_owned(),
            said => format!("{said}: {cause}"),
        }
    })
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
