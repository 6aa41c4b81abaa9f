//! The program `kubectl-hostloop`, which kubectl runs as `kubectl hostloop`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::env;
use std::process::ExitCode;

use hostloop_terminal::exit;

fn main() -> ExitCode {
    let line: Vec<_> = env::args_os().collect();
    if hostloop_kubectl::is_completer(&line) {
        return hostloop_kubectl::complete(&line[1..]);
    }
    let parsed = hostloop_kubectl::parse(&line);
    exit::status(
        "kubectl hostloop",
        parsed.map(|cli| Ok(hostloop_kubectl::run(&cli)?)),
    )
}
