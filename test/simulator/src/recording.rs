//! The recording of a history, which the page of `kubectl hostloop ui --replay` shows.
//!
//! While a history happens, what the page would show is noted with its time, and nothing more: a
//! history that is recorded is the same as one that is not. At its end, the client makes a
//! recording of the notes, and the clocks show the time of each.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hostloop_driver::inspect::status::Report;
use hostloop_events::serve::Line;
use hostloop_events::{Event, Kind, RING};
use hostloop_fake_api::FakeApi;
use hostloop_kubectl::{RecordedCluster, Recorder};
use parking_lot::Mutex;
use serde_json::Value;

use crate::cluster::{DRIVER, NAMESPACE, OWN_NAMESPACE};
use crate::shim;

/// The shortest time between two reports of a node.
const PAUSE: Duration = Duration::from_secs(3);
/// The time between two looks at how far everything is. What waits becomes stuck by time alone.
const LOOK: Duration = Duration::from_secs(15);

/// Something that the page shows.
enum Note {
    Set(Arc<Value>),
    Gone(Arc<Value>),
    Report(&'static str, Box<Report>),
    /// A node does not report.
    Silent(&'static str),
    /// An event of a process, by its number.
    Event(u64, Arc<Event>),
    /// A sentence about something.
    Say(String, String),
}

/// What makes the report of a node.
type Survey = Arc<dyn Fn() -> Option<Report> + Send + Sync>;

struct Node {
    survey: Survey,
    last: Option<Duration>,
    /// It has changed since its last report, or has been silent.
    is_due: bool,
    /// Its driver does not run.
    is_silent: bool,
}

#[derive(Default)]
struct Notes {
    /// In order, with the time on the clocks.
    all: Vec<(Duration, Note)>,
    nodes: BTreeMap<&'static str, Node>,
    /// The number of the next event. None before all processes have started: the first of them
    /// makes the ring of events, which takes random numbers.
    next_event: Option<u64>,
}

/// The notes, if there is to be a recording.
static NOTES: Mutex<Option<Notes>> = Mutex::new(None);

/// Notes from now on what happens.
pub(crate) fn begin() {
    *NOTES.lock() = Some(Notes::default());
}

/// Notes the changes of all objects.
pub(crate) fn follow(api: &FakeApi) {
    if NOTES.lock().is_none() {
        return;
    }
    api.on_change(|old, new| match (old, new) {
        (_, Some(new)) => note(Note::Set(new.clone())),
        (Some(old), None) => note(Note::Gone(old.clone())),
        (None, None) => {}
    });
}

/// A node begins to report. `survey` runs in a thread of its own.
pub(crate) fn node(
    name: &'static str,
    survey: impl Fn() -> Option<Report> + Send + Sync + 'static,
) {
    if let Some(notes) = &mut *NOTES.lock() {
        let node = Node {
            survey: Arc::new(survey),
            last: None,
            is_due: true,
            is_silent: true,
        };
        notes.nodes.insert(name, node);
    }
}

/// The driver of a node has worked, and maybe changed something.
pub(crate) fn worked(name: &'static str, has_changed: bool) {
    let is_late = {
        let mut notes = NOTES.lock();
        let Some(notes) = &mut *notes else {
            return;
        };
        notes.events();
        let Some(node) = notes.nodes.get_mut(name) else {
            return;
        };
        node.is_silent = false;
        node.is_due |= has_changed;
        node.is_due && node.last.is_none_or(|last| shim::clock() >= last + PAUSE)
    };
    if is_late {
        report(name);
    }
}

/// The driver of a node does not run any more.
pub(crate) fn silent(name: &'static str) {
    if let Some(notes) = &mut *NOTES.lock() {
        if let Some(node) = notes.nodes.get_mut(name) {
            (node.is_due, node.is_silent) = (true, true);
        }
        notes.add(Note::Silent(name));
    }
}

/// Notes a sentence about something. It replaces the one before.
pub(crate) fn say(about: &str, text: &str) {
    note(Note::Say(about.to_owned(), text.to_owned()));
}

/// Notes the events and reports that are due. All processes have started.
pub(crate) fn look() {
    let due: Vec<&'static str> = {
        let mut notes = NOTES.lock();
        let Some(notes) = &mut *notes else {
            return;
        };
        notes.next_event = notes.next_event.or(Some(0));
        notes.events();
        let due = notes.nodes.iter();
        let due = due.filter(|(_, node)| node.is_due && !node.is_silent);
        due.map(|(name, _)| *name).collect()
    };
    due.into_iter().for_each(report);
}

/// Notes the report of a node.
fn report(name: &'static str) {
    let survey = {
        let mut notes = NOTES.lock();
        let Some(node) = notes.as_mut().and_then(|notes| notes.nodes.get_mut(name)) else {
            return;
        };
        node.is_due = false;
        node.last = Some(shim::clock());
        node.survey.clone()
    };
    if let Some(report) = shim::apart(&*survey).flatten() {
        note(Note::Report(name, Box::new(report)));
    }
}

fn note(note: Note) {
    if let Some(notes) = &mut *NOTES.lock() {
        notes.events();
        notes.add(note);
    }
}

impl Notes {
    fn add(&mut self, note: Note) {
        self.all.push((shim::clock(), note));
    }

    /// Notes the events since the last ones.
    fn events(&mut self) {
        let Some(next) = self.next_event else {
            return;
        };
        let batch = RING.since(next, usize::MAX);
        for (number, event) in (batch.first..).zip(&batch.events) {
            self.add(Note::Event(number, event.clone()));
        }
        self.next_event = Some(batch.next());
    }
}

/// Writes the recording of the history of a seed, if one was begun. The runtime has ended.
pub(crate) fn write(seed: u64, file: &Path) -> io::Result<()> {
    let Some(notes) = NOTES.lock().take() else {
        return Ok(());
    };
    shim::set_clock(Duration::ZERO);
    let places = Places::of(&notes);
    let mut recorder = Recorder::begin(RecordedCluster {
        name: &format!("simulated, seed {seed}"),
        namespace: NAMESPACE,
        driver: DRIVER,
        system_namespace: OWN_NAMESPACE,
    });
    let mut looked = Duration::ZERO;
    for (at, note) in &notes.all {
        while looked + LOOK <= *at {
            looked += LOOK;
            shim::set_clock(looked);
            recorder.update_verdicts();
        }
        shim::set_clock(*at);
        match note {
            Note::Set(object) => recorder.set(object),
            Note::Gone(object) => recorder.delete(object),
            Note::Report(node, report) => recorder.report(node, Ok(report)),
            Note::Silent(node) => recorder.report(node, Err("the driver does not run")),
            Note::Event(number, event) => {
                let line = serde_json::to_value(Line::of(&RING, *number, event))?;
                recorder.event(places.node(event), &line);
            }
            Note::Say(about, text) => recorder.say(about, Some(text)),
        }
    }
    recorder.update_verdicts();
    std::fs::write(file, recorder.json())
}

/// Where events happened. All processes share one ring, and an event does not name its process.
struct Places {
    /// The node of each call that names something of a node's pool, by the ID of the call.
    calls: BTreeMap<u64, &'static str>,
    /// The node, if there is only one.
    only: Option<&'static str>,
}

impl Places {
    fn of(notes: &Notes) -> Places {
        let mut pools: BTreeMap<&str, &'static str> = BTreeMap::new();
        for (_, note) in &notes.all {
            if let Note::Report(node, report) = note {
                let ids = report.pools.iter().filter_map(|pool| pool.id.as_deref());
                pools.extend(ids.map(|id| (id, *node)));
            }
        }
        let mut calls = BTreeMap::new();
        for (_, note) in &notes.all {
            if let Note::Event(_, event) = note
                && let Some(id) = event.parent.or(event.id)
                && let Ok(text) = serde_json::to_string(&**event)
                && let Some((_, node)) = pools.iter().find(|(pool, _)| text.contains(**pool))
            {
                calls.insert(id, *node);
            }
        }
        let mut nodes = notes.nodes.keys().copied();
        let only = nodes.next().filter(|_| nodes.next().is_none());
        Places { calls, only }
    }

    /// The node of an event; `None` for what the cluster's controllers did, or may have done.
    fn node(&self, event: &Event) -> Option<&'static str> {
        let id = event.parent.or(event.id);
        let known = id.and_then(|id| self.calls.get(&id).copied());
        let is_call = matches!(event.kind, Kind::Call | Kind::Phase);
        known.or(self.only.filter(|_| is_call))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(pool: &str) -> Box<Report> {
        let pool = json!({"name": "pool", "kind": "directory", "path": "/p", "state": "open",
            "id": pool, "volumes": 0, "snapshots": 0});
        let report = json!({"pools": [pool], "volumes": [], "snapshots": [], "groups": [],
            "loops": [], "mounts": [], "orphans": []});
        serde_json::from_value(report).expect("a report")
    }

    fn event(kind: Kind, about: &str, id: Option<u64>, parent: Option<u64>) -> Event {
        let event = Event::new(kind, "name", "".into(), about.into());
        Event {
            id,
            parent,
            ..event
        }
    }

    fn notes(nodes: &[&'static str], events: &[Event]) -> Notes {
        let mut notes = Notes::default();
        for (name, pool) in nodes.iter().zip(["aaaa", "bbbb"]) {
            let node = Node {
                survey: Arc::new(|| None::<Report>),
                last: None,
                is_due: true,
                is_silent: true,
            };
            notes.nodes.insert(*name, node);
            notes.add(Note::Report(name, report(pool)));
        }
        for event in events {
            notes.add(Note::Event(0, Arc::new(event.clone())));
        }
        notes
    }

    #[test]
    fn an_event_is_of_the_node_whose_pool_its_call_names() {
        let events = [
            event(Kind::Call, "pvc-1", Some(1), None),
            event(Kind::Phase, "", Some(2), Some(1)),
            event(Kind::Call, "vol-bbbb-1", Some(1), None),
            event(Kind::Call, "vol-aaaa-1", Some(3), None),
            event(Kind::Call, "pvc-2", Some(4), None),
            event(Kind::Work, "u/c1", Some(5), None),
            event(Kind::Lease, "lease", None, None),
        ];
        for (nodes, expected) in [
            (
                &["n1", "n2"][..],
                [
                    Some("n2"),
                    Some("n2"),
                    Some("n2"),
                    Some("n1"),
                    None,
                    None,
                    None,
                ],
            ),
            (
                &["n1"],
                [
                    Some("n1"),
                    Some("n1"),
                    Some("n1"),
                    Some("n1"),
                    Some("n1"),
                    None,
                    None,
                ],
            ),
        ] {
            let places = Places::of(&notes(nodes, &events));
            let found = events.iter().map(|event| places.node(event));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{nodes:?}");
        }
    }
}
