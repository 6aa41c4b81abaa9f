//! Tables of the flags of a program, from clap's description of its command line.

use std::collections::HashMap;

use clap::builder::StyledStr;
use clap::{Arg, Command};

use crate::{check_named_table, table};

/// What a help text says about a default that clap does not know.
const DEFAULT: &str = "[default: ";

/// The most columns of `--help`.
const WIDTH: usize = 100;

/// Fails if clap refuses the command line of a program, if a help text has a broken line, or if the
/// reference has other flags. `name` is what a person types, and `source` has the command line.
pub fn check(program: Command, name: &str, source: &str) {
    program.clone().debug_assert();
    let broken = broken_lines(&program);
    assert!(broken.is_empty(), "{broken:#?}");
    let tables = tables(program, name);
    check_named_table("docs/reference/flags.md", name, &tables, source);
}

/// The tables of a program: for each of its commands, a heading and a table for each heading of
/// `--help`. Flags of all commands come first. A table that an earlier command has is not repeated.
/// `name` is what a person types.
fn tables(program: Command, name: &str) -> String {
    let mut page = Page::default();
    if program.get_arguments().any(Arg::is_global_set) {
        page.text
            .push_str(&format!("### `{name}`, any command\n\n"));
        page.add_tables(name, &program, Arg::is_global_set);
    }
    page.add_commands(&program, name);
    page.text.trim_end().to_owned() + "\n"
}

/// The lines behind the flags in `--help` that are wider than it is, and go on in a line of their own.
/// clap breaks each into a full line and a stub. A paragraph that is one line has no stubs in any width.
fn broken_lines(program: &Command) -> Vec<String> {
    let text = program.get_after_help().map(StyledStr::to_string);
    let text = text.unwrap_or_default();
    let next = text.lines().skip(1).chain([""]);
    let mut broken: Vec<String> = text
        .lines()
        .zip(next)
        .filter(|(line, next)| is_broken(line, next))
        .map(|(line, _)| format!("{}: {line}", program.get_name()))
        .collect();
    broken.extend(program.get_subcommands().flat_map(broken_lines));
    broken
}

fn is_broken(line: &str, next: &str) -> bool {
    line.chars().count() > WIDTH && !line.ends_with(['.', ':']) && !next.is_empty()
}

/// What is written so far.
#[derive(Default)]
struct Page {
    text: String,
    /// The commands with a table under a heading, by both.
    commands: HashMap<String, String>,
}

impl Page {
    fn add_commands(&mut self, parent: &Command, name: &str) {
        for command in parent.get_subcommands().filter(|one| !one.is_hide_set()) {
            let name = format!("{name} {}", command.get_name());
            let about = command.get_about().map(sentence).unwrap_or_default();
            self.text.push_str(&format!("### `{name}`\n\n{about}.\n\n"));
            self.add_tables(&name, command, |arg| !arg.is_global_set());
            self.add_commands(command, &name);
        }
    }

    /// Adds the tables of those arguments of a command that `chosen` accepts.
    fn add_tables(&mut self, name: &str, command: &Command, chosen: fn(&Arg) -> bool) {
        let arguments: Vec<&Arg> = command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set() && chosen(arg))
            .collect();
        let mut headings: Vec<&str> = Vec::new();
        for arg in &arguments {
            let heading = arg.get_help_heading().unwrap_or_default();
            if !headings.contains(&heading) {
                headings.push(heading);
            }
        }
        for heading in headings {
            let rows: Vec<[String; 4]> = arguments
                .iter()
                .filter(|arg| arg.get_help_heading().unwrap_or_default() == heading)
                .map(|arg| row(arg))
                .collect();
            let table = table(["Flag", "Environment", "Default", "Meaning"], &rows);
            self.add_table(name, heading, table);
        }
    }

    fn add_table(&mut self, name: &str, heading: &str, table: String) {
        if heading.is_empty() {
            self.text.push_str(&format!("{table}\n"));
            return;
        }
        let text = format!("**{heading}**\n\n{table}\n");
        match self.commands.get(&text) {
            Some(earlier) => {
                let reference = format!("**{heading}**: as of `{earlier}`\n\n");
                self.text.push_str(&reference);
            }
            None => {
                self.text.push_str(&text);
                self.commands.insert(text, name.to_owned());
            }
        }
    }
}

fn row(arg: &Arg) -> [String; 4] {
    let help = arg.get_long_help().or(arg.get_help());
    let (help, default_in_words) = without_default(help.map(sentence).unwrap_or_default());
    let variable = arg.get_env().map(|name| code(&name.to_string_lossy()));
    let mut meaning = help;
    let values = values(arg);
    if !values.is_empty() {
        meaning.push_str(&format!(". One of {}", values.join(", ")));
    }
    let default = if arg.is_required_set() {
        "required".to_owned()
    } else {
        known_default(arg)
            .map(|value| code(&value))
            .unwrap_or(default_in_words)
    };
    [
        code(&usage(arg)),
        variable.unwrap_or_default(),
        default,
        meaning,
    ]
}

/// An argument as it is typed.
fn usage(arg: &Arg) -> String {
    let value = arg
        .get_value_names()
        .filter(|_| arg.get_action().takes_values())
        .map(|names| names.join(" "));
    let Some(long) = arg.get_long() else {
        return value.unwrap_or_else(|| arg.get_id().to_string());
    };
    let short = arg
        .get_short()
        .map_or_else(String::new, |short| format!("-{short}, "));
    let is_optional = arg
        .get_num_args()
        .is_some_and(|count| count.min_values() == 0);
    match value {
        None => format!("{short}--{long}"),
        Some(value) if is_optional => format!("{short}--{long}[={value}]"),
        Some(value) => format!("{short}--{long} {value}"),
    }
}

/// The default that clap knows, unless the help hides it.
fn known_default(arg: &Arg) -> Option<String> {
    let values = arg.get_default_values();
    let is_shown = arg.get_action().takes_values() && !arg.is_hide_default_value_set();
    let words: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
    (is_shown && !words.is_empty()).then(|| words.join(","))
}

/// The values that an argument may have, if they are few.
fn values(arg: &Arg) -> Vec<String> {
    if !arg.get_action().takes_values() || arg.is_hide_possible_values_set() {
        return Vec::new();
    }
    let values = arg.get_possible_values().into_iter();
    values
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("{} ({})", code(value.get_name()), sentence(help)),
            None => code(value.get_name()),
        })
        .collect()
}

/// A help text in one line, without its last full stop.
fn sentence(help: &StyledStr) -> String {
    let text = help.to_string().replace('<', "&lt;");
    let paragraphs: Vec<String> = text
        .split("\n\n")
        .map(|paragraph| {
            let words: Vec<&str> = paragraph.split_whitespace().collect();
            words.join(" ").trim_end_matches('.').to_owned()
        })
        .collect();
    paragraphs.join(". ")
}

/// Takes what a help text says about the default out of it.
fn without_default(help: String) -> (String, String) {
    let Some((before, rest)) = help.split_once(DEFAULT) else {
        return (help, String::new());
    };
    let Some((default, after)) = rest.split_once(']') else {
        return (help, String::new());
    };
    let text = format!("{}{after}", before.trim_end());
    (text, default.to_owned())
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    #[test]
    fn flags_are_tables_by_command_and_heading() {
        let size = Arg::new("size")
            .long("size")
            .value_name("SIZE")
            .env("TEST_SIZE")
            .default_value("1Gi")
            .help("The size\nof all");
        let node = Arg::new("node")
            .long("node")
            .short('n')
            .value_name("NAME")
            .help_heading("Where")
            .help("The node [default: this one]. Or none");
        let quiet = Arg::new("quiet")
            .long("quiet")
            .action(ArgAction::SetTrue)
            .help("Print nothing");
        let volume = Arg::new("volume").value_name("ID").required(true);
        let look = Command::new("look").about("Look at it").arg(node.clone());
        let make = Command::new("make").about("Make a volume.").args([
            size,
            quiet,
            volume.help("The volume"),
            node,
        ]);
        let program = Command::new("any").subcommands([make, look]);
        assert_eq!(
            tables(program, "hostloop"),
            "### `hostloop make`\n\nMake a volume.\n\n\
             | Flag | Environment | Default | Meaning |\n|---|---|---|---|\n\
             | `--size SIZE` | `TEST_SIZE` | `1Gi` | The size of all |\n\
             | `--quiet` | | | Print nothing |\n\
             | `ID` | | required | The volume |\n\n\
             **Where**\n\n\
             | Flag | Environment | Default | Meaning |\n|---|---|---|---|\n\
             | `-n, --node NAME` | | this one | The node. Or none |\n\n\
             ### `hostloop look`\n\nLook at it.\n\n\
             **Where**: as of `hostloop make`\n"
        );
    }

    #[test]
    fn a_line_that_goes_on_is_no_wider_than_the_help() {
        let (wide, full) = ("x ".repeat(60), "x".repeat(WIDTH));
        for (text, is_right) in [
            (format!("{wide}x.\n\nNext."), true),
            (format!("{wide}x.\nNext."), true),
            (format!("List:\n  {wide}"), true),
            (format!("{full}\nend."), true),
            (format!("{full}x\nend."), false),
        ] {
            let look = Command::new("look").after_help(text.clone());
            let broken = broken_lines(&Command::new("any").subcommand(look));
            assert_eq!(broken.is_empty(), is_right, "{text}");
        }
    }
}
