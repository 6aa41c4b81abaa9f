//! Makes the recording of a cluster that no client can join, such as a simulated one.
//!
//! Objects, reports and events come from the program that has them. They take the same way as those
//! of a real cluster, so the page gets the same parts of them, and the same verdicts. Each message
//! has the time of this program's clock.

use std::sync::Arc;

use hostloop_report::clock::now_ns;
use hostloop_report::status::Report;
use serde_json::Value;

use super::Out;
use super::kinds::{KINDS, OwnNames, Scope, ShownKind};
use super::message::{EventProcess, Message, PageSubject};
use super::recording;
use super::reports::KnownReports;
use super::verdicts::{Verdicts, messages, verdicts};

/// The cluster of a recording.
#[derive(Clone, Copy, Debug)]
pub struct RecordedCluster<'a> {
    /// The name under which the page shows it.
    pub name: &'a str,
    /// The namespace that the page shows first.
    pub namespace: &'a str,
    /// The name of the driver.
    pub driver: &'a str,
    /// The namespace of hostloop's pods.
    pub system_namespace: &'a str,
}

/// A recording that is being made.
pub struct Recorder {
    hello: Arc<str>,
    names: OwnNames,
    out: Out,
    reports: KnownReports,
    verdicts: Verdicts,
}

impl Recorder {
    /// Begins a recording.
    pub fn begin(cluster: RecordedCluster<'_>) -> Recorder {
        let out = Out::new();
        // What is never set does not exist.
        for kind in KINDS {
            out.verdict_facts.settle(kind.kind, true);
        }
        let subject = PageSubject {
            cluster: Some(cluster.name.to_owned()),
            endpoint: None,
            namespace: cluster.namespace.to_owned(),
            driver: cluster.driver.to_owned(),
        };
        Recorder {
            hello: subject.hello(),
            names: OwnNames {
                driver: cluster.driver.to_owned(),
                system_namespace: cluster.system_namespace.to_owned(),
            },
            out,
            reports: KnownReports::default(),
            verdicts: Verdicts::new(),
        }
    }

    /// Takes an object as it is now. The page gets it if it concerns hostloop.
    pub fn set(&mut self, object: &Value) {
        let Some(kind) = self.kind(object) else {
            return;
        };
        let key = key(object);
        match (kind.show)(object, &self.names) {
            Some(shown) => {
                let concern = kind.concern(object, &self.names);
                self.out.concerns.set(kind.kind, &key, shown, concern);
            }
            None => self.out.concerns.delete(kind.kind, &key),
        }
    }

    /// Takes the end of an object.
    pub fn delete(&mut self, object: &Value) {
        if let Some(kind) = self.kind(object) {
            self.out.concerns.delete(kind.kind, &key(object));
        }
    }

    /// Takes what `hostloop status` reports on a node, or why it reports nothing.
    pub fn report(&mut self, node: &str, report: Result<&Report, &str>) {
        let about = format!("the report of node {node}");
        match report {
            Ok(report) => {
                self.out.problems.solved(&about);
                self.reports.report(&self.out, node, report);
            }
            Err(why) => {
                self.out.problems.found(&about, why);
                self.out.verdict_facts.report(node, None);
            }
        }
    }

    /// Takes an event of a process: of the controllers, or of a node's driver.
    pub fn event(&mut self, node: Option<&str>, event: &Value) {
        let process = if node.is_some() { "node" } else { "controller" };
        let source = EventProcess {
            node: node.unwrap_or_default().to_owned(),
            process: process.to_owned(),
        };
        self.out.history.add(Message::event(&source, event));
        self.out.verdict_facts.event(event);
    }

    /// Shows a sentence about something, or ends it.
    pub fn say(&mut self, about: &str, text: Option<&str>) {
        match text {
            Some(text) => self.out.problems.found(about, text),
            None => self.out.problems.solved(about),
        }
    }

    /// Looks at how far everything is at this time, and why it does not go on.
    pub fn update_verdicts(&mut self) {
        let Some(evidence) = self.out.verdict_facts.now(0) else {
            return;
        };
        let found = verdicts(&evidence, &self.names.driver, now_ns());
        for message in messages(&self.verdicts, &found) {
            self.out.history.add(message);
        }
        self.verdicts = found;
    }

    /// The recording as JSON, which `ui --replay` shows.
    pub fn json(&self) -> String {
        let texts = self.out.history.all().texts;
        let all: Vec<Arc<str>> = [self.hello.clone()].into_iter().chain(texts).collect();
        recording::json(&all)
    }

    /// The kind of an object, if the page shows such objects.
    fn kind(&self, object: &Value) -> Option<ShownKind> {
        let namespace = &object["metadata"]["namespace"];
        KINDS.into_iter().find(|kind| {
            object["kind"] == kind.kind
                && object["apiVersion"] == api_version(kind)
                && (kind.scope != Scope::System || *namespace == *self.names.system_namespace)
        })
    }
}

fn api_version(kind: &ShownKind) -> String {
    match kind.group {
        "" => kind.version.to_owned(),
        group => format!("{group}/{}", kind.version),
    }
}

/// The name, after the namespace if there is one.
fn key(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn recorder() -> Recorder {
        Recorder::begin(RecordedCluster {
            name: "simulated",
            namespace: "u",
            driver: "d",
            system_namespace: "s",
        })
    }

    /// The messages as the client reads them from a file: type, and key or node or subject.
    fn read(recorder: &Recorder) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), recorder.json()).unwrap();
        let text = recording::read(file.path()).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        let messages = read["messages"].as_array().unwrap();
        messages.iter().map(line).collect()
    }

    fn line(message: &Value) -> String {
        let fields = ["type", "op", "kind", "key", "process", "node", "about"];
        let words = fields.iter().filter_map(|field| message[field].as_str());
        words.collect::<Vec<_>>().join(" ")
    }

    fn class(name: &str, driver: &str) -> Value {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name}, "provisioner": driver})
    }

    fn claim() -> Value {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "c", "namespace": "u", "uid": "1"},
            "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}})
    }

    fn lease(namespace: &str) -> Value {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l", "namespace": namespace}})
    }

    #[test]
    fn what_concerns_hostloop_is_recorded() {
        let mut recorder = recorder();
        recorder.set(&claim());
        recorder.set(&class("slow", "other"));
        recorder.set(&lease("elsewhere"));
        // The claim waits for its class.
        recorder.set(&class("fast", "d"));
        recorder.set(&lease("s"));
        recorder.set(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}));
        recorder.delete(&claim());
        recorder.delete(&claim());
        assert_eq!(
            read(&recorder),
            [
                "hello",
                "object set StorageClass fast",
                "object set PersistentVolumeClaim u/c",
                "object set Lease s/l",
                "object delete PersistentVolumeClaim u/c",
            ]
        );
    }

    #[test]
    fn reports_events_sentences_and_verdicts_are_recorded() {
        let mut recorder = recorder();
        let report = json!({"pools": [], "volumes": [], "snapshots": [], "groups": [], "loops": [],
            "mounts": [], "orphans": []});
        let report: Report = serde_json::from_value(report).unwrap();
        recorder.report("n1", Ok(&report));
        recorder.report("n1", Ok(&report));
        recorder.report("n1", Err("the driver is dead"));
        recorder.report("n1", Ok(&report));
        recorder.event(Some("n1"), &json!({"seq": 0, "boot": "b", "kind": "call"}));
        recorder.event(None, &json!({"seq": 1, "boot": "b", "kind": "lease"}));
        recorder.say("now", Some("a user creates a claim"));
        recorder.say("now", None);
        recorder.update_verdicts();
        recorder.set(&class("fast", "d"));
        recorder.set(&claim());
        recorder.update_verdicts();
        recorder.update_verdicts();
        assert_eq!(
            read(&recorder),
            [
                "hello",
                "report n1",
                "problem the report of node n1",
                "solved the report of node n1",
                "event node n1",
                "event controller ",
                "problem now",
                "solved now",
                "object set StorageClass fast",
                "object set PersistentVolumeClaim u/c",
                "verdict",
            ]
        );
    }
}
