//! What may come next on a command line.

use clap::{Arg, Command};

/// The words that may stand in place of the last one. Commands and flags have their help behind a
/// tab.
pub(super) fn candidates(mut root: Command, words: &[&str]) -> Vec<String> {
    root.build();
    let (last, before) = words.split_last().unwrap_or((&"", &[]));
    let mut command = &root;
    let mut previous = None;
    for word in before {
        let value_of = previous
            .and_then(|flag| argument(command, flag))
            .is_some_and(takes_value);
        if !value_of && let Some(found) = command.find_subcommand(word) {
            command = found;
        }
        previous = word.starts_with('-').then_some(*word);
    }
    let all: Vec<String> = match previous.and_then(|flag| argument(command, flag)) {
        Some(flag) if takes_value(flag) => values(flag),
        _ if last.starts_with('-') => flags(command),
        _ => {
            let names = command.get_subcommands().filter(|one| !one.is_hide_set());
            let names = names.map(|one| described(one.get_name(), one.get_about()));
            names
                .chain(command.get_positionals().flat_map(values))
                .collect()
        }
    };
    all.into_iter()
        .filter(|candidate| candidate.starts_with(last))
        .collect()
}

/// The argument that a word such as `--output` or `-o` begins.
fn argument<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    command.get_arguments().find(
        |arg| match (word.strip_prefix("--"), word.strip_prefix('-')) {
            (Some(long), _) => arg.get_long() == Some(long),
            (None, Some(short)) => arg.get_short().is_some_and(|c| short == c.to_string()),
            (None, None) => false,
        },
    )
}

/// True if the next word is the argument's value.
fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

fn values(arg: &Arg) -> Vec<String> {
    let values = arg.get_possible_values();
    values
        .iter()
        .map(|value| described(value.get_name(), value.get_help()))
        .collect()
}

fn flags(command: &Command) -> Vec<String> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    visible
        .filter_map(|arg| Some(described(&format!("--{}", arg.get_long()?), arg.get_help())))
        .collect()
}

/// A word and the first line of its help.
fn described(word: &str, help: Option<&clap::builder::StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    match help.lines().next() {
        Some(line) if !line.is_empty() => format!("{word}\t{line}"),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line;

    #[test]
    fn what_may_come_next() {
        for (line, some, none) in [
            (
                "",
                vec!["install", "status", "completion"],
                vec!["--kubeconfig"],
            ),
            ("in", vec!["install"], vec!["uninstall"]),
            (
                "install --d",
                vec!["--default-class", "--dry-run", "--driver-name"],
                vec!["--pool"],
            ),
            ("--context kind-kind un", vec!["uninstall"], vec!["load"]),
            // The value of a flag is not a subcommand.
            ("--context install --", vec!["--kubeconfig"], vec!["--pool"]),
            (
                "install --snapshot-controller ",
                vec!["auto", "yes", "no"],
                vec!["install"],
            ),
            ("install --snapshot-controller y", vec!["yes"], vec!["no"]),
            (
                "status -o ",
                vec!["wide", "json", "yaml", "name", "jsonpath="],
                vec!["install"],
            ),
            ("check --output ", vec!["wide", "jsonpath="], vec!["name"]),
            ("events data -o n", vec![], vec!["name"]),
            ("fault ", vec!["set", "clear", "list"], vec!["gone"]),
            (
                "fault set data ",
                vec!["gone", "eio-from=", "powercut", "full"],
                vec!["list"],
            ),
            ("fault set data f", vec!["frozen", "full"], vec!["gone"]),
            ("fault set data --f", vec!["--for"], vec!["--force"]),
            ("fault list -o ", vec!["name", "yaml"], vec!["set"]),
            ("powercut --", vec!["--delete-pods", "--now"], vec!["--for"]),
            (
                "explore --c",
                vec!["--check", "--cuts", "--clean-up"],
                vec!["--seed"],
            ),
            ("completion ", vec!["bash", "zsh", "fish"], vec!["install"]),
            ("completion f", vec!["fish"], vec!["bash"]),
            ("no-such x", vec![], vec!["install"]),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let candidates = candidates(command_line(), &words);
            let has = |word: &&str| {
                candidates
                    .iter()
                    .any(|one| one.split('\t').next() == Some(*word))
            };
            assert!(some.iter().all(has), "{line:?}: {candidates:?}");
            assert!(!none.iter().any(has), "{line:?}: {candidates:?}");
        }
        let described = candidates(command_line(), &["insta"]);
        assert_eq!(
            described,
            ["install\tInstall hostloop into the cluster, or change how it is installed"]
        );
    }
}
