//! The end of a program: its message and its exit status.

use std::process::ExitCode;

use hostloop_report::error_chain;

use crate::terminal;

/// The exit status for an invalid command line (EX_USAGE). clap's 2 has a meaning for `fsck`.
const USAGE: u8 = 64;

/// Prints why a command of this program failed, or what clap says instead of it. Returns the exit
/// status.
pub fn status(program: &str, performed: Result<anyhow::Result<ExitCode>, clap::Error>) -> ExitCode {
    match performed {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            terminal::error(&format!("{program}: {}", error_chain(&*error)));
            ExitCode::FAILURE
        }
        // clap returns help and version as errors, too.
        Err(said) => match (said.print(), said.use_stderr()) {
            (Ok(()), false) => ExitCode::SUCCESS,
            (Ok(()), true) => ExitCode::from(USAGE),
            (Err(_), _) => ExitCode::FAILURE,
        },
    }
}
