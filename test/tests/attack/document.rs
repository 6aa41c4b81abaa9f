//! Compares the attack table with docs/security.md.

use std::fmt::Write as _;

use hostloop_test::machine::root;

use crate::table::{Attack, Outcome, Read};

const BEGIN: &str =
    "<!-- The attack test checks this table, and writes it with HOSTLOOP_WRITE_DOCS=1. -->\n";
const END: &str = "<!-- End of the table. -->\n";

/// Fails if the table in the document differs. With HOSTLOOP_WRITE_DOCS, writes the table instead.
pub(crate) fn check(attacks: &[Attack], reads: &[Read]) {
    let path = root().join("docs/security.md");
    let text = std::fs::read_to_string(&path).expect("docs/security.md can be read");
    let (before, rest) = text.split_once(BEGIN).expect("it has a table");
    let (table, after) = rest.split_once(END).expect("its table has an end");
    let wanted = format!("\n{}\n{}\n", written(attacks), read(reads));
    if std::env::var_os("HOSTLOOP_WRITE_DOCS").is_some() {
        let text = format!("{before}{BEGIN}{wanted}{END}{after}");
        std::fs::write(&path, text).expect("docs/security.md can be written");
        return;
    }
    assert!(
        table == wanted,
        "docs/security.md has another table than test/tests/attack/table.rs: run this test with \
         HOSTLOOP_WRITE_DOCS=1"
    );
}

fn written(attacks: &[Attack]) -> String {
    let mut table = String::from(
        "| Verb | Resource | What | Its own | Another node's | No node's yet | Another driver's |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for attack in attacks {
        let Attack { verb, resource, what, outcomes, .. } = attack;
        let cells = outcomes.each_ref().map(|outcome| match outcome {
            Outcome::Yes => "**yes**",
            Outcome::No(_) => "no",
            Outcome::Nothing => "",
        });
        let line = writeln!(table, "| {verb} | {resource} | {what} | {} |", cells.join(" | "));
        line.expect("a string takes all");
    }
    table
}

fn read(reads: &[Read]) -> String {
    let mut table = String::from("| Reads | How | Where |\n|---|---|---|\n");
    for read in reads {
        let place = match read.namespace {
            "" => "everywhere".to_owned(),
            namespace if read.name == "none" => format!("namespace {namespace}"),
            namespace => format!("namespace {namespace}, {} alone", read.name),
        };
        let (resource, verbs) = (read.resource, read.verbs.join(", "));
        writeln!(table, "| {resource} | {verbs} | {place} |").expect("a string takes all");
    }
    table
}
