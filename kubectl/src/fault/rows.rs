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

use super::fault_status::{FaultProgress, FaultStatus};
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
    claim: String,
    /// The annotation; null if the claim has none, and had none.
    fault: Option<String>,
    state: FaultProgress,
    message: String,
}

impl FaultRow {
    pub(crate) fn new(
        claim: &PersistentVolumeClaim,
        fault: Option<impl Into<String>>,
        said: FaultStatus,
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

    fn claim(name: &str) -> PersistentVolumeClaim {
        read(json!({"metadata": {"name": name, "namespace": "demo", "uid": "u"}}))
    }

    fn row(name: &str, fault: &str, progress: FaultProgress, message: &str) -> FaultRow {
        FaultRow::new(
            &claim(name),
            Some(fault),
            FaultStatus::new(progress, message),
        )
    }

    fn lines(rows: &[FaultRow], form: TextForm, namespaces: bool) -> Vec<String> {
        plain(&text(rows, form, namespaces))
    }

    #[test]
    fn a_row_for_each_claim() {
        let injected = row(
            "data",
            "gone,for=300s",
            FaultProgress::Injected,
            "The volume has the fault gone,for=300s, which its claim or its class asks for. To end it,\n\
             remove the annotation hostloop.csi.dev/fault of the claim, or set it to none if it is the \
             fault of the class",
        );
        assert_eq!(
            lines(&[injected], TextForm::default(), false),
            [
                "Faults",
                "  CLAIM  FAULT          STATE     MESSAGE",
                "  data   gone,for=300s  injected  The volume has the fault gone,for=300s, which its \
                 claim or its class asks for. To end it, remove the annotation hostloop.csi.dev/fault \
                 of the claim, or set it to none if it is the fault of the class",
            ]
        );
    }

    #[test]
    fn rows_after_a_power_cut() {
        let healed = |name: &str| {
            let message = "The fault powercut has ended, and the volume works again";
            row(name, "powercut", FaultProgress::Healed, message)
        };
        assert_eq!(
            lines(
                &[healed("data"), healed("logs")],
                TextForm::default(),
                false
            ),
            [
                "Faults",
                "  CLAIM  FAULT     STATE   MESSAGE",
                "  data   powercut  healed  The fault powercut has ended, and the volume works again",
                "  logs   powercut  healed  The fault powercut has ended, and the volume works again",
            ]
        );
    }

    #[test]
    fn rows_alone_with_their_namespaces() {
        let form = TextForm {
            no_headers: true,
            ..TextForm::default()
        };
        let cleared = FaultStatus::new(FaultProgress::Cleared, "the claim asks for no fault");
        let cleared = FaultRow::new(&claim("data"), None::<String>, cleared);
        assert_eq!(
            lines(&[cleared], form, true),
            ["  demo       data   -      cleared  the claim asks for no fault"]
        );
    }

    #[test]
    fn rows_for_programs() {
        let rows = [row("data", "gone", FaultProgress::NeedsRestage, "a b")];
        let faults = Faults { faults: &rows };
        assert_eq!(
            json!(faults),
            json!({"faults": [{"namespace": "demo", "claim": "data", "fault": "gone",
                "state": "needs-restage", "message": "a b"}]})
        );
        assert_eq!(names(&rows), ["persistentvolumeclaim/data"]);
    }

    #[test]
    fn claims_in_one_state() {
        let rows = [
            row("data", "gone", FaultProgress::Refused, "m"),
            row("logs", "gone", FaultProgress::Injected, "m"),
        ];
        assert_eq!(FaultRow::names_of(&rows, FaultProgress::is_failure), "data");
    }
}
