//! Which program a command line is for: the driver's, kubectl's plugin, or its completion.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::{COMPLETER, PLUGIN};

/// The program that a command line is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `hostloop`, with a subcommand of the driver.
    Driver,
    /// `hostloop`, with a subcommand that is a client of the cluster.
    Client,
    /// `kubectl hostloop`.
    Plugin,
    /// The program that kubectl runs to complete the arguments of `kubectl hostloop`.
    Completer,
}

/// The subcommands that only the client has.
const CLIENT_COMMANDS: [&str; 8] = [
    "install",
    "uninstall",
    "load",
    "check",
    "describe",
    "logs",
    "ui",
    "completion",
];

/// The client's flags before a subcommand. Each takes a value.
const CLIENT_FLAGS: [&str; 6] = [
    "--kubeconfig",
    "--context",
    "--namespace",
    "-n",
    "--system-namespace",
    "--driver-name",
];

impl Program {
    /// Decides by the whole command line. `has_pools` is true if the environment names pools.
    pub fn of(line: &[OsString], has_pools: bool) -> Program {
        let Some((name, words)) = line.split_first() else {
            return Program::Driver;
        };
        match Path::new(name).file_stem().and_then(OsStr::to_str) {
            Some(PLUGIN) => return Program::Plugin,
            Some(COMPLETER) => return Program::Completer,
            _ => {}
        }
        let words: Vec<&str> = words
            .iter()
            .map(|word| word.to_str().unwrap_or_default())
            .collect();
        let is_client_flag = |word: &str| {
            let flag = word.split_once('=').map_or(word, |(flag, _)| flag);
            CLIENT_FLAGS.contains(&flag)
        };
        let names_pools = || {
            words
                .iter()
                .any(|word| *word == "--pool" || word.starts_with("--pool="))
        };
        let asks_for_help = || words.iter().any(|word| ["-h", "--help"].contains(word));
        match words.as_slice() {
            [first, ..] if is_client_flag(first) => Program::Client,
            ["help", command, ..] | [command, ..] if CLIENT_COMMANDS.contains(command) => {
                Program::Client
            }
            // A node's status needs its pools.
            ["status", ..] if !has_pools && !names_pools() && !asks_for_help() => Program::Client,
            _ => Program::Driver,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_by_its_name_and_arguments() {
        for (line, has_pools, program) in [
            ("hostloop", false, Program::Driver),
            ("hostloop serve", false, Program::Driver),
            ("hostloop fsck", false, Program::Driver),
            ("hostloop --help", false, Program::Driver),
            ("hostloop no-such-command", false, Program::Driver),
            (
                "/usr/bin/hostloop install --dry-run",
                false,
                Program::Client,
            ),
            ("hostloop uninstall", false, Program::Client),
            ("hostloop load", false, Program::Client),
            ("hostloop check", false, Program::Client),
            ("hostloop describe data", false, Program::Client),
            ("hostloop logs data", false, Program::Client),
            (
                "hostloop ui --endpoint unix:///s --pool a=/p",
                true,
                Program::Client,
            ),
            ("hostloop events --follow", false, Program::Driver),
            ("hostloop completion bash", false, Program::Client),
            ("hostloop help install", false, Program::Client),
            ("hostloop help serve", false, Program::Driver),
            ("hostloop help status", false, Program::Driver),
            (
                "hostloop --context kind-kind status",
                false,
                Program::Client,
            ),
            ("hostloop --kubeconfig=f status", true, Program::Client),
            ("hostloop -n shop describe data", false, Program::Client),
            // status, by whether pools are named
            ("hostloop status", false, Program::Client),
            ("hostloop status", true, Program::Driver),
            ("hostloop status --pool a=/p", false, Program::Driver),
            ("hostloop status --pool=a=/p", false, Program::Driver),
            ("hostloop status -o json", false, Program::Client),
            ("hostloop status --help", false, Program::Driver),
            // The file's name decides before the arguments do.
            ("kubectl-hostloop", false, Program::Plugin),
            (
                "/opt/bin/kubectl-hostloop status --pool a=/p",
                true,
                Program::Plugin,
            ),
            ("kubectl-hostloop serve", false, Program::Plugin),
            ("kubectl_complete-hostloop st", false, Program::Completer),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(
                Program::of(&words, has_pools),
                program,
                "{line} {has_pools}"
            );
        }
        assert_eq!(Program::of(&[], false), Program::Driver);
    }
}
