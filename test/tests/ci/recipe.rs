//! What pages print for a person to type.

use hostloop_test::machine::root;

/// The first block below a heading.
pub(crate) fn block(page: &str, heading: &str) -> String {
    let text = read(page);
    let (_, below) = text
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("{page} has no {heading}"));
    let block = below.split("```").nth(1).expect("a block");
    block
        .strip_prefix("console\n")
        .expect("commands")
        .to_owned()
}

/// The indented block that begins with these words.
pub(crate) fn lines(page: &str, first: &str) -> String {
    let text = read(page);
    let begin = text
        .find(&format!("\n    {first}"))
        .unwrap_or_else(|| panic!("{page} has no {first}"));
    let block = text[begin + 1..].lines();
    let indented = block.map_while(|line| line.strip_prefix("    "));
    indented.collect::<Vec<_>>().join("\n")
}

/// The command in backquotes, within a sentence, that begins with these words.
pub(crate) fn inline(page: &str, first: &str) -> String {
    let text = read(page);
    let (_, rest) = text
        .split_once(&format!("`{first}"))
        .unwrap_or_else(|| panic!("{page} has no {first}"));
    let (rest, _) = rest.split_once('`').expect("it ends");
    format!("{first}{rest}")
}

/// What a step of a workflow runs, if it has several lines.
pub(crate) fn run_of(workflow: &str, step: &str) -> String {
    let text = read(&format!("docs/ci-examples/{workflow}"));
    let (_, below) = text
        .split_once(&format!("- name: {step}\n"))
        .unwrap_or_else(|| panic!("{workflow} has no step {step}"));
    let (_, run) = below.split_once("run: |\n").expect("it runs commands");
    let indent = " ".repeat(run.len() - run.trim_start().len());
    let lines = run.lines().map_while(|line| line.strip_prefix(&*indent));
    lines.collect::<Vec<_>>().join("\n")
}

/// Puts a test's own values in. Each has to be there.
pub(crate) fn with(lines: &str, changes: &[(&str, &str)]) -> String {
    let mut lines = lines.to_owned();
    for (printed, ours) in changes {
        assert!(lines.contains(printed), "{printed} is not in: {lines}");
        lines = lines.replace(printed, ours);
    }
    lines
}

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}
