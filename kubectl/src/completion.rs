//! `completion`: completes the command line in a shell.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{PLUGIN, Program, command_line, output};
use crate::cli;
use crate::inspect::render::terminal;

mod words;

/// Arguments of `completion`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "bash:  source <(hostloop completion bash)\n\
                  zsh:   source <(hostloop completion zsh)\n\
                  fish:  hostloop completion fish | source\n\
                  \n\
                  kubectl completes `kubectl hostloop` by a program of another name. Make it, on \
                  the PATH, by: ln -s kubectl-hostloop kubectl_complete-hostloop")]
pub struct Args {
    /// The shell
    pub shell: Shell,
}

/// Prints the script for the name under which the program was called.
pub(super) fn run(args: &Args, program: Program) -> ExitCode {
    let script = script(args.shell, program);
    let written = terminal::print(&[terminal::document(script.trim_end())]);
    output::end(written).unwrap_or_else(|error| {
        terminal::error(&format!("can't write the script: {error}"));
        ExitCode::FAILURE
    })
}

fn script(shell: Shell, program: Program) -> String {
    let (mut command, name) = match program {
        Program::Plugin | Program::Completer => (command_line(program), PLUGIN),
        Program::Client | Program::Driver => (whole(), "hostloop"),
    };
    // With a dash in the name, the script for bash would complete nothing after a subcommand.
    let plain = name.replace('-', "_");
    let written = if shell == Shell::Bash {
        plain.as_str()
    } else {
        name
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, written, &mut script);
    let script = String::from_utf8_lossy(&script);
    // The last words of the script's last commands are the name that bash completes.
    script.replace(&format!(" {written}\n"), &format!(" {name}\n"))
}

/// The command line with the subcommands of both the driver and the client.
fn whole() -> clap::Command {
    let client = super::Cli::command();
    let own = cli::Cli::command();
    let further: Vec<_> = client
        .get_subcommands()
        .filter(|one| own.find_subcommand(one.get_name()).is_none())
        .cloned()
        .collect();
    let flags: Vec<_> = client.get_arguments().cloned().collect();
    own.subcommands(
        further
            .into_iter()
            .map(|command| command.args(flags.clone())),
    )
}

/// Prints what may come next, one word a line. The last line is that of kubectl's own completions:
/// the shell must not add names of files.
pub(super) fn complete(words: &[OsString]) -> ExitCode {
    let words: Vec<&str> = words
        .iter()
        .map(|word| word.to_str().unwrap_or_default())
        .collect();
    let mut lines = words::candidates(command_line(Program::Completer), &words);
    lines.push(":4".to_owned());
    output::end(terminal::print(&lines)).unwrap_or(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_a_script_for_both_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            for (program, name) in [(Program::Plugin, PLUGIN), (Program::Client, "hostloop")] {
                let script = script(shell, program);
                for word in [name, "uninstall", "kubeconfig"] {
                    assert!(script.contains(word), "{shell} {name}: {word}");
                }
            }
        }
    }

    #[test]
    fn the_whole_program_has_both_command_lines() {
        let whole = whole();
        for name in [
            "serve",
            "run",
            "fsck",
            "status",
            "install",
            "check",
            "completion",
        ] {
            assert!(whole.find_subcommand(name).is_some(), "{name}");
        }
    }
}
