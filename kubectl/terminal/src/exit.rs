//! The end of a program: its message and its exit status.

use std::process::ExitCode;

use crate::terminal;

/// The exit status for an invalid command line (EX_USAGE). clap's 2 has a meaning for `fsck`.
const USAGE: u8 = 64;

/// Prints why a command of this program failed, or what clap says instead of it. Returns the exit
/// status.
pub fn status(program: &str, performed: Result<anyhow::Result<ExitCode>, clap::Error>) -> ExitCode {
    match performed {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            terminal::error(&format!("{program}: {}", sentence(&error)));
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
