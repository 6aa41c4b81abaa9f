//! `completion`: completes the command line in a shell.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap_complete::Shell;
use hostloop_terminal::terminal;

use super::{COMPLETER, PLUGIN, command_line, output};

mod words;

/// Arguments of `completion`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "bash:  source <(kubectl hostloop completion bash)\n\
                  zsh:   source <(kubectl hostloop completion zsh)\n\
                  fish:  kubectl hostloop completion fish | source\n\
                  \n\
                  kubectl completes `kubectl hostloop` by a program of another name. Make it, on \
                  the PATH, by: ln -s kubectl-hostloop kubectl_complete-hostloop")]
pub struct Args {
    /// The shell
    pub shell: Shell,
}

/// True if kubectl runs the program to complete a command line: then it has another name.
pub fn is_completer(line: &[OsString]) -> bool {
    let name = line.first().map(Path::new).and_then(Path::file_stem);
    name.is_some_and(|name| name == COMPLETER)
}

/// Prints the script.
pub(super) fn run(args: &Args) -> ExitCode {
    let script = script(args.shell);
    let written = terminal::print(&[terminal::document(script.trim_end())]);
    output::end(written).unwrap_or_else(|error| {
        terminal::error(&format!("can't write the script: {error}"));
        ExitCode::FAILURE
    })
}

fn script(shell: Shell) -> String {
    // With a dash in the name, the script for bash would complete nothing after a subcommand.
    let plain = PLUGIN.replace('-', "_");
    let written = if shell == Shell::Bash {
        plain.as_str()
    } else {
        PLUGIN
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command_line(), written, &mut script);
    let script = String::from_utf8_lossy(&script);
    // The last words of the script's last commands are the name that bash completes.
    script.replace(&format!(" {written}\n"), &format!(" {PLUGIN}\n"))
}

/// Prints what may come next on the command line of `kubectl hostloop`, for kubectl: one word a
/// line. The last line is that of kubectl's own completions: the shell must not add names of files.
pub fn complete(words: &[OsString]) -> ExitCode {
    let words: Vec<&str> = words
        .iter()
        .map(|word| word.to_str().unwrap_or_default())
        .collect();
    let mut lines = words::candidates(command_line(), &words);
    lines.push(":4".to_owned());
    output::end(terminal::print(&lines)).unwrap_or(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_a_script() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            for word in [PLUGIN, "uninstall", "kubeconfig"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn the_name_of_the_file_says_whether_kubectl_completes_a_line() {
        for (line, completes) in [
            ("kubectl-hostloop", false),
            ("/opt/bin/kubectl-hostloop status --pool a=/p", false),
            ("kubectl_complete-hostloop st", true),
            ("/opt/bin/kubectl_complete-hostloop", true),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(is_completer(&words), completes, "{line}");
        }
        assert!(!is_completer(&[]));
    }
}
