//! Compares the list of attacks with docs/security.md.

use std::fmt::Write as _;

use hostloop_document::check_table;

use crate::attack::Attack;

const BEGIN: &str =
    "<!-- The adversary test checks this table, and writes it with HOSTLOOP_WRITE_DOCS=1. -->\n";
const END: &str = "<!-- End of the adversary's table. -->\n";

pub(crate) fn check(attacks: &[Attack]) {
    let mut table =
        String::from("\n| Attack | Number | What holds it | Shown by |\n|---|---|---|---|\n");
    for Attack {
        what,
        holds,
        sizes: [few, many],
        file,
        ..
    } in attacks
    {
        let row = writeln!(table, "| {what} | {few}, {many} | {holds} | `{file}` |");
        row.expect("a string takes all");
    }
    table.push('\n');
    check_table(
        "docs/security.md",
        [BEGIN, END],
        &table,
        "test/tests/adversary/attack.rs",
    );
}
