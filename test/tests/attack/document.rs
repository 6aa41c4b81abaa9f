//! Compares the attack table with docs/security.md.

use std::fmt::Write as _;

use hostloop_document::check_table;

use crate::table::{Attack, Outcome, Read};

const BEGIN: &str =
    "<!-- The attack test checks this table, and writes it with HOSTLOOP_WRITE_DOCS=1. -->\n";
const END: &str = "<!-- End of the table. -->\n";

/// Fails if the table in the document differs. With HOSTLOOP_WRITE_DOCS, writes the table instead.
pub(crate) fn check(attacks: &[Attack], reads: &[Read]) {
    let table = format!("\n{}\n{}\n", written(attacks), read(reads));
    check_table(
        "docs/security.md",
        [BEGIN, END],
        &table,
        "test/tests/attack/table.rs",
    );
}

fn written(attacks: &[Attack]) -> String {
    let mut table = String::from(
        "| Verb | Resource | What | Its own | Another node's | No node's yet | Another driver's |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for attack in attacks {
        let Attack {
            verb,
            resource,
            what,
            outcomes,
            ..
        } = attack;
        let cells = outcomes.each_ref().map(|outcome| match outcome {
            Outcome::Yes => "**yes**",
            Outcome::No(_) => "no",
            Outcome::Nothing => "",
        });
        let line = writeln!(
            table,
            "| {verb} | {resource} | {what} | {} |",
            cells.join(" | ")
        );
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
