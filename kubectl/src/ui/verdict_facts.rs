//! What verdicts need: the objects that the page shows, the nodes' reports, and calls that fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hostloop_api_objects::snapshots::{
    VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};
use hostloop_report::status::Report;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use crate::node_pods::NodeReport;
use crate::verdict::FailedCalls;
use crate::volume_objects::VolumeObjects;

/// Objects of one kind by key.
type ByKey<T> = BTreeMap<String, T>;

/// The facts as they come. Clones share them.
#[derive(Clone, Default)]
pub(super) struct VerdictFacts {
    state: Arc<Mutex<FactsState>>,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct FactsState {
    claims: ByKey<PersistentVolumeClaim>,
    volumes: ByKey<PersistentVolume>,
    classes: ByKey<StorageClass>,
    attachments: ByKey<VolumeAttachment>,
    pods: ByKey<Pod>,
    events: ByKey<Event>,
    snapshots: ByKey<VolumeSnapshot>,
    contents: ByKey<VolumeSnapshotContent>,
    groups: ByKey<VolumeGroupSnapshot>,
    group_contents: ByKey<VolumeGroupSnapshotContent>,
    /// The kinds that were listed, or can't be.
    settled: BTreeSet<&'static str>,
    has_all_volumes: bool,
    reports: ByKey<Report>,
    failed_calls: FailedCalls,
}

/// All facts at one time.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub(super) objects: VolumeObjects,
    pub(super) groups: Vec<VolumeGroupSnapshot>,
    pub(super) group_contents: Vec<VolumeGroupSnapshotContent>,
    pub(super) nodes: Vec<NodeReport>,
    pub(super) failed_calls: FailedCalls,
}

impl VerdictFacts {
    /// Takes the state of an object that the page shows.
    pub(super) fn set(&self, kind: &str, key: &str, object: &Value) {
        self.state.lock().put(kind, key, Some(object));
        self.changes.send_replace(());
    }

    /// Takes the end of an object.
    pub(super) fn delete(&self, kind: &str, key: &str) {
        self.state.lock().put(kind, key, None);
        self.changes.send_replace(());
    }

    /// Takes that a kind was listed, or that it can't be.
    pub(super) fn settle(&self, kind: &'static str, is_listed: bool) {
        let mut state = self.state.lock();
        state.settled.insert(kind);
        state.has_all_volumes |= is_listed && kind == "PersistentVolume";
        drop(state);
        self.changes.send_replace(());
    }

    /// Takes what a node reports; `None` if it does not report.
    pub(super) fn report(&self, node: &str, report: Option<&Report>) {
        let mut state = self.state.lock();
        match report {
            Some(report) => _ = state.reports.insert(node.to_owned(), report.clone()),
            None => _ = state.reports.remove(node),
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// Forgets the reports of other nodes.
    pub(super) fn keep(&self, nodes: &BTreeSet<&str>) {
        let mut state = self.state.lock();
        state
            .reports
            .retain(|node, _| nodes.contains(node.as_str()));
    }

    /// Takes an event of a process.
    pub(super) fn event(&self, event: &Value) {
        if self.state.lock().failed_calls.take(event) {
            self.changes.send_replace(());
        }
    }

    /// Notices changes from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The facts now. `None` until so many kinds are listed: a volume that is not listed yet is not
    /// lost.
    pub(super) fn now(&self, kinds: usize) -> Option<Evidence> {
        let state = self.state.lock();
        (state.settled.len() >= kinds).then(|| state.evidence())
    }
}

impl FactsState {
    fn put(&mut self, kind: &str, key: &str, object: Option<&Value>) {
        match kind {
            "PersistentVolumeClaim" => put(&mut self.claims, key, object),
            "PersistentVolume" => put(&mut self.volumes, key, object),
            "StorageClass" => put(&mut self.classes, key, object),
            "VolumeAttachment" => put(&mut self.attachments, key, object),
            "Pod" => put(&mut self.pods, key, object),
            "Event" => put(&mut self.events, key, object),
            "VolumeSnapshot" => put(&mut self.snapshots, key, object),
            "VolumeSnapshotContent" => put(&mut self.contents, key, object),
            "VolumeGroupSnapshot" => put(&mut self.groups, key, object),
            "VolumeGroupSnapshotContent" => put(&mut self.group_contents, key, object),
            _ => {}
        }
    }

    fn evidence(&self) -> Evidence {
        let nodes = self.reports.iter().map(|(node, report)| NodeReport {
            node: node.clone(),
            pod: String::new(),
            report: Ok(report.clone()),
            took: Duration::ZERO,
        });
        Evidence {
            objects: VolumeObjects {
                claims: self.claims.values().cloned().collect(),
                volumes: self.volumes.values().cloned().collect(),
                classes: self.classes.values().cloned().collect(),
                attachments: self.attachments.values().cloned().collect(),
                pods: self.pods.values().cloned().collect(),
                events: self.events.values().cloned().collect(),
                snapshots: self.snapshots.values().cloned().collect(),
                contents: self.contents.values().cloned().collect(),
                groups: Vec::new(),
                has_all_volumes: self.has_all_volumes,
                missing: Vec::new(),
            },
            groups: self.groups.values().cloned().collect(),
            group_contents: self.group_contents.values().cloned().collect(),
            nodes: nodes.collect(),
            failed_calls: self.failed_calls.clone(),
        }
    }
}

/// Replaces an object. One that can't be read is not there.
fn put<T: DeserializeOwned>(objects: &mut ByKey<T>, key: &str, object: Option<&Value>) {
    match object.and_then(|object| T::deserialize(object).ok()) {
        Some(object) => _ = objects.insert(key.to_owned(), object),
        None => _ = objects.remove(key),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn there_are_facts_once_all_kinds_are_settled() {
        let facts = VerdictFacts::default();
        assert!(facts.now(0).is_some());
        facts.settle("Pod", true);
        facts.settle("Pod", true);
        assert!(facts.now(2).is_none());
        facts.settle("PersistentVolume", false);
        assert!(!facts.now(2).unwrap().objects.has_all_volumes);
        facts.settle("PersistentVolume", true);
        assert!(facts.now(2).unwrap().objects.has_all_volumes);
    }

    #[test]
    fn objects_and_reports_come_and_go() {
        let facts = VerdictFacts::default();
        let mut changes = facts.changes();
        let count = || {
            let now = facts.now(0).unwrap();
            (now.objects.pods.len(), now.nodes.len())
        };
        // As the page gets it: without what containers run.
        let pod = json!({"metadata": {"name": "web"}, "spec": {"volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "a"}}, {"name": "b", "ephemeral": {}},
            {"name": "c", "csi": {"driver": "hostloop.csi.dev"}},
        ]}, "status": {"phase": "Pending", "containerStatuses": [{
            "name": "web", "ready": null, "restartCount": 1, "state": null,
        }]}});
        facts.set("Pod", "demo/web", &pod);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        facts.set("Node", "n1", &json!({}));
        let report = json!({"pools": [], "volumes": [], "snapshots": [], "groups": [],
            "loops": [], "mounts": [], "orphans": []});
        facts.report("n1", Some(&serde_json::from_value(report).unwrap()));
        assert_eq!(count(), (1, 1));
        facts.keep(&BTreeSet::from(["n2"]));
        assert_eq!(count(), (1, 0));
        facts.set("Pod", "demo/web", &json!({"metadata": 7}));
        assert_eq!(count(), (0, 0));
        facts.set("Pod", "demo/web", &pod);
        facts.delete("Pod", "demo/web");
        assert_eq!(count(), (0, 0));
        assert!(changes.has_changed().unwrap());
    }
}
