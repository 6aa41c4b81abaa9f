//! What the commands about faults print: a row for each claim.

use std::io;
use std::process::ExitCode;

use anstyle::Style;
use hostloop_terminal::color::{BAD, WARNING};
use hostloop_terminal::columns::or_dash;
use hostloop_terminal::page::{Cell, Page};
use hostloop_terminal::table::{prose, words};
use hostloop_terminal::terminal;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde::Serialize;

use super::said::{FaultProgress, Said};
use crate::output::{self, OutputArgs, TextForm};

/// The data of the output. Names and meanings are stable; fields may be added.
#[derive(Serialize)]
struct Faults<'r> {
    faults: &'r [FaultRow],
}

/// A claim and its fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FaultRow {
    namespace: String,
    pub(crate) claim: String,
    /// The annotation; null if the claim has none, and had none.
    fault: Option<String>,
    pub(crate) state: FaultProgress,
    message: String,
}

impl FaultRow {
    pub(crate) fn new(
        claim: &PersistentVolumeClaim,
        fault: Option<impl Into<String>>,
        said: Said,
    ) -> FaultRow {
        let words: Vec<&str> = said.message.split_whitespace().collect();
        FaultRow {
            namespace: claim.namespace().unwrap_or_default(),
            claim: claim.name_any(),
            fault: fault.map(Into::into),
            state: said.progress,
            message: words.join(" "),
        }
    }

    /// The names of the claims in one of these states, in a sentence; empty if there are none.
    pub(crate) fn names_of(rows: &[FaultRow], which: impl Fn(FaultProgress) -> bool) -> String {
        let found = rows.iter().filter(|row| which(row.state));
        output::names(found.map(|row| &row.claim))
    }
}

/// Prints the rows in the form that the person wants.
pub(crate) fn print(
    rows: &[FaultRow],
    args: &OutputArgs,
    namespaces: bool,
) -> io::Result<ExitCode> {
    let faults = Faults { faults: rows };
    let lines = match args.document(&faults, || names(rows))? {
        Some(lines) => lines,
        None => text(rows, args.text_form(), namespaces),
    };
    output::end(terminal::print(&lines))
}

/// The objects for `-o name`.
fn names(rows: &[FaultRow]) -> Vec<String> {
    let claims = rows.iter();
    claims
        .map(|row| format!("persistentvolumeclaim/{}", row.claim))
        .collect()
}

fn text(rows: &[FaultRow], form: TextForm, namespaces: bool) -> Vec<String> {
    // A sentence is what the person waits for, so it is never cut.
    let mut page = Page::new(None, 0);
    page.no_headers = form.no_headers;
    let mut cells: Vec<Cell<FaultRow>> = Vec::new();
    if namespaces {
        cells.push((words("NAMESPACE"), |row, _| row.namespace.clone()));
    }
    cells.extend::<[Cell<FaultRow>; 4]>([
        (words("CLAIM"), |row, _| row.claim.clone()),
        (words("FAULT"), |row, _| or_dash(row.fault.clone())),
        (words("STATE"), |row, _| row.state.word().to_owned()),
        (prose("MESSAGE", None), |row, _| row.message.clone()),
    ]);
    page.painted_table("Faults", &cells, rows, style);
    page.lines
}

fn style(row: &FaultRow) -> Option<Style> {
    match row.state {
        FaultProgress::Injected | FaultProgress::NeedsRestage => Some(WARNING),
        state if state.is_failure() => Some(BAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::test_objects::{plain, read};

    fn rows() -> Vec<FaultRow> {
        let claim = |name: &str| {
            read::<PersistentVolumeClaim>(
                json!({"metadata": {"name": name, "namespace": "demo", "uid": "u"}}),
            )
        };
        vec![
            FaultRow::new(
                &claim("data"),
                Some("gone,for=300s"),
                Said::new(FaultProgress::Injected, "It has\nthe fault"),
            ),
            FaultRow::new(
                &claim("logs"),
                None::<String>,
                Said::new(FaultProgress::Cleared, "it asks for none"),
            ),
        ]
    }

    #[test]
    fn a_row_for_each_claim() {
        let form = TextForm::default();
        assert_eq!(
            plain(&text(&rows(), form, false)),
            [
                "Faults",
                "  CLAIM  FAULT          STATE     MESSAGE",
                "  data   gone,for=300s  injected  It has the fault",
                "  logs   -              cleared   it asks for none",
            ]
        );
        let rows_alone = TextForm {
            no_headers: true,
            ..form
        };
        let lines = plain(&text(&rows(), rows_alone, true));
        assert_eq!(
            lines[0],
            "  demo  data  gone,for=300s  injected  It has the fault"
        );
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn rows_for_programs() {
        let rows = rows();
        assert_eq!(
            json!(Faults { faults: &rows[..1] }),
            json!({"faults": [{"namespace": "demo", "claim": "data", "fault": "gone,for=300s",
                "state": "injected", "message": "It has the fault"}]})
        );
        assert_eq!(
            names(&rows),
            ["persistentvolumeclaim/data", "persistentvolumeclaim/logs"]
        );
    }
}
