use std::path::Path;

use hostloop_document::{check_named_table, table};

use super::*;

#[test]
fn the_reference_has_every_event() {
    for (process, events, source) in [
        (
            "the pod on each node",
            NODE,
            "controllers/src/client/events/reasons/node.rs",
        ),
        (
            "the controller's pod",
            CONTROLLER,
            "controllers/src/client/events/reasons/controller.rs",
        ),
    ] {
        let rows: Vec<[String; 5]> = events.iter().map(row).collect();
        let head = ["Reason", "Type", "Object", "It says", "Do"];
        let table = table(head, &rows);
        check_named_table("docs/reference/events.md", process, &table, source);
    }
}

fn row(event: &EventReason) -> [String; 5] {
    let EventReason {
        reason,
        kind,
        about,
        says,
        remedy,
    } = event;
    [
        format!("`{reason}`"),
        format!("{kind:?}"),
        (*about).to_owned(),
        (*says).to_owned(),
        (*remedy).to_owned(),
    ]
}

/// Each reason of the tables is a literal of a controller, too: nothing is listed that no process
/// emits any more.
#[test]
fn every_listed_event_is_emitted() {
    let mut sources = String::new();
    read_sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut sources,
    );
    for EventReason { reason, .. } in NODE.iter().chain(CONTROLLER) {
        assert!(
            sources.contains(&format!("\"{reason}\"")),
            "no controller emits {reason}"
        );
    }
}

/// Reads the sources of the controllers, but for tests and these tables.
fn read_sources(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if ["tests", "tests.rs", "testing", "reasons"].contains(&name) {
            continue;
        }
        if path.is_dir() {
            read_sources(&path, into);
        } else if name.ends_with(".rs") {
            into.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}
