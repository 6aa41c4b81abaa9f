//! The commands in the documents are ones that the client reads.

use std::ffi::OsString;

use rstest::rstest;

use crate::{PLUGIN, command_line, parse};

/// Documents with blocks of commands, by their paths.
const PAGES: [(&str, &str); 11] = [
    ("README.md", include_str!("../../README.md")),
    ("deploy/README.md", include_str!("../../deploy/README.md")),
    ("docs/backup.md", include_str!("../../docs/backup.md")),
    ("docs/faults.md", include_str!("../../docs/faults.md")),
    ("docs/kubectl.md", include_str!("../../docs/kubectl.md")),
    (
        "docs/power-cuts.md",
        include_str!("../../docs/power-cuts.md"),
    ),
    ("docs/running.md", include_str!("../../docs/running.md")),
    ("docs/shared.md", include_str!("../../docs/shared.md")),
    ("docs/start.md", include_str!("../../docs/start.md")),
    ("docs/teaching.md", include_str!("../../docs/teaching.md")),
    ("docs/ui.md", include_str!("../../docs/ui.md")),
];

/// The command lines of the client in the blocks of a document. A block is fenced, or indented.
fn commands(page: &str) -> Vec<&str> {
    let mut is_fenced = false;
    let mut commands = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        }
        let is_code = is_fenced || line.starts_with("    ");
        let command = line.trim().strip_prefix("kubectl hostloop ");
        commands.extend(command.filter(|_| is_code));
    }
    commands
}

/// The words of a command as a shell reads them: without quotes, up to a comment or a pipe.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(mark), c) if c == mark => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '#' | '|') if word.is_none() => return words,
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn the_client_reads_every_command() {
    let mut read = 0;
    for (page, text) in PAGES {
        for command in commands(text) {
            let words = words(command).into_iter().map(OsString::from);
            let line: Vec<OsString> = [OsString::from(PLUGIN)].into_iter().chain(words).collect();
            if let Err(error) = parse(&line) {
                panic!("{page}: {command}: {error}");
            }
            read += 1;
        }
    }
    assert!(read > 30, "{read} commands are found");
}

/// The page about the client shows of each command what it prints.
#[test]
fn each_command_has_a_section_with_its_output() {
    let page = include_str!("../../docs/kubectl.md");
    let program = command_line();
    for command in program.get_subcommands() {
        let name = command.get_name();
        let section = page.split("\n## ").find(|section| {
            let heading = section.lines().next().unwrap_or_default().to_lowercase();
            heading.split([' ', ',']).any(|word| word == name)
        });
        let section = section.unwrap_or_else(|| panic!("no section about {name}"));
        assert!(section.contains("\n```text\n"), "{name}");
    }
}

#[rstest]
#[case::plain("check --live", &["check", "--live"])]
#[case::comment("install   # waits", &["install"])]
#[case::pipe("status data | awk '{print $3}'", &["status", "data"])]
#[case::quotes("-o jsonpath='{.a[\"b\"]} |#' x", &["-o", "jsonpath={.a[\"b\"]} |#", "x"])]
#[case::empty("--name ''", &["--name", ""])]
fn words_as_a_shell_reads_them(#[case] line: &str, #[case] expected: &[&str]) {
    assert_eq!(words(line), expected);
}

#[test]
fn commands_are_in_blocks() {
    let page = "\
Type
kubectl hostloop check
or

    kubectl hostloop status -A
    kubectl get pods

```console
kubectl hostloop ui
```
kubectl hostloop logs
";
    assert_eq!(commands(page), ["status -A", "ui"]);
}
