//! Tips for a person who means the client of a cluster, which is a program of its own, or who does
//! not name the driver's pools.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use hostloop_report::flags::{CLIENT_COMMANDS, CLIENT_FLAGS};

/// The command that both programs have.
const STATUS: &str = "status";

/// The commands that look at the pools of a driver.
const POOL_COMMANDS: [&str; 2] = [STATUS, "fsck"];

/// Adds tips to the error of a command line that is one of `kubectl hostloop`, or that lacks the
/// pools.
pub fn with_tips(line: &[OsString], mut error: clap::Error) -> clap::Error {
    let mut tips = Vec::new();
    if lacks_pools(line, &error) {
        tips.push(StyledStr::from(
            "name the driver's pools: by --pool and --statedir, or by HOSTLOOP_POOL and \
             HOSTLOOP_STATEDIR in the environment, as in the driver's container",
        ));
    }
    if let Some(command) = client_command(line, &error) {
        let tip = format!(
            "`kubectl hostloop {command}` is a command of the client of a cluster, the program \
             kubectl-hostloop"
        );
        tips.push(StyledStr::from(tip));
    }
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// True if a command about pools has none. They are all that it needs.
fn lacks_pools(line: &[OsString], error: &clap::Error) -> bool {
    let command = line.get(1).and_then(|word| word.to_str());
    error.kind() == ErrorKind::MissingRequiredArgument
        && command.is_some_and(|command| POOL_COMMANDS.contains(&command))
}

/// The client's command that the person may have meant.
fn client_command<'l>(line: &'l [OsString], error: &'l clap::Error) -> Option<&'l str> {
    match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(name))) => {
            Some(name.as_str()).filter(|name| CLIENT_COMMANDS.contains(name))
        }
        (ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument, _) => {
            let mut words = line.iter().skip(1).filter_map(|word| word.to_str());
            let first = words.next()?;
            // `status` with a flag that a node's has not, or without its pools.
            if first == STATUS {
                return Some(first);
            }
            // A flag of the client before a command.
            let flag = first.split('=').next().unwrap_or_default();
            if !CLIENT_FLAGS.contains(&flag) {
                return None;
            }
            words.find(|word| *word == STATUS || CLIENT_COMMANDS.contains(word))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn the_client_is_suggested_where_a_line_is_its() {
        for (line, command) in [
            ("hostloop install --dry-run", Some("install")),
            ("hostloop help install", Some("install")),
            ("hostloop check", Some("check")),
            ("hostloop completion bash", Some("completion")),
            ("hostloop ui --endpoint unix:///s --pool a=/p", Some("ui")),
            ("hostloop --context kind-kind status", Some("status")),
            ("hostloop --kubeconfig=f check", Some("check")),
            ("hostloop -n shop describe data", Some("describe")),
            ("hostloop status -o json", Some("status")),
            ("hostloop status --pool=a=/p -o json", Some("status")),
            ("hostloop no-such-command", None),
            ("hostloop fsck -o json", None),
            ("hostloop serve", None),
            ("hostloop status --help", None),
        ] {
            let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = with_tips(&line, Cli::try_parse_from(&line).unwrap_err());
            let text = error.to_string();
            match command {
                Some(command) => {
                    let tip = format!("tip: `kubectl hostloop {command}` is a command");
                    assert!(text.contains(&tip), "{line:?}: {text}");
                }
                None => assert!(!text.contains("is a command of"), "{line:?}: {text}"),
            }
        }
    }

    #[test]
    fn a_line_without_pools_is_told_how_to_name_them() {
        for (line, is_told) in [
            ("hostloop status", true),
            ("hostloop fsck --repair", true),
            ("hostloop fsck --no-such-flag", false),
            ("hostloop serve", false),
        ] {
            let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = with_tips(&line, Cli::try_parse_from(&line).unwrap_err());
            let text = error.to_string();
            assert_eq!(text.contains("by HOSTLOOP_POOL"), is_told, "{text}");
        }
    }
}
