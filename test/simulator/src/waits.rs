//! How long users wait for what they make: for claims until they are bound, and for pods until they
//! run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hostloop_fake_api::FakeApi;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::history::Action;
use crate::machine::limits::INLINE_OF_NAMESPACE;
use crate::model::view::{
    claims_of, event_about, event_note, is_unbound, items, name, namespace, text, uid,
};
use crate::users::{is_immediate, path, path_in, volume_path};
use crate::{messages, shim};

/// A wait that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wait {
    /// The step that made it, counted without those of the world.
    pub(crate) step: usize,
    /// The claim or pod.
    pub(crate) of: String,
    /// The steps that made what it is made of: its source, or its claims.
    pub(crate) with: Vec<usize>,
    /// Data was copied meanwhile.
    pub(crate) is_copy: bool,
    pub(crate) millis: u64,
}

/// Notes waits. Clones share the notes.
#[derive(Clone, Default)]
pub(crate) struct Waits(Arc<Mutex<Notes>>);

#[derive(Default)]
struct Notes {
    /// What is not done, by UID.
    open: BTreeMap<String, Open>,
    /// The steps that made claims and snapshots, by UID.
    steps: BTreeMap<String, usize>,
    done: Vec<Wait>,
}

struct Open {
    path: String,
    since: Duration,
    wait: Wait,
}

impl Waits {
    /// Notes what a step has made. A claim that waits for its first pod, or for its source, is not
    /// counted, and a pod that may wait for the inline volumes of others is not, either.
    pub(crate) fn begin(&self, api: &FakeApi, step: usize, action: &Action) {
        let (plural, name) = match action {
            Action::Claim { name, .. } => ("persistentvolumeclaims", name),
            Action::Pod { name, .. }
            | Action::InlinePod { name, .. }
            | Action::EphemeralPod { name, .. } => ("pods", name),
            Action::Snapshot { name, .. } => ("volumesnapshots", name),
            _ => return,
        };
        let path = path(plural, name);
        let Some(object) = api.shared_at(&path) else {
            return;
        };
        let mut notes = self.0.lock();
        let mut with = Vec::new();
        let is_copy = has_source(&object);
        let counts = match plural {
            "pods" => !may_wait_for_inline_volumes(api, &object),
            "persistentvolumeclaims" => {
                let source = source(api, &object);
                with.extend(source.as_ref().and_then(|it| notes.steps.get(uid(it))));
                let is_immediate = is_immediate(text(&object, "/spec/storageClassName"));
                is_immediate && (!is_copy || source.is_some_and(|source| is_ready(&source)))
            }
            _ => false,
        };
        notes.steps.insert(uid(&object).to_owned(), step);
        if counts {
            let open = Open {
                path,
                since: shim::now(),
                wait: Wait {
                    step,
                    of: format!("{} {name}", plural.trim_end_matches('s')),
                    with,
                    is_copy,
                    millis: 0,
                },
            };
            notes.open.insert(uid(&object).to_owned(), open);
        }
    }

    /// Notes what is done after each write, until it is dropped.
    pub(crate) async fn follow(self, api: FakeApi, mut writes: watch::Receiver<u64>) {
        while writes.changed().await.is_ok() {
            self.look(&api);
        }
    }

    fn look(&self, api: &FakeApi) {
        let mut notes = self.0.lock();
        for (of, mut open) in std::mem::take(&mut notes.open) {
            let object = api.shared_at(&open.path);
            // What is gone was given up.
            let Some(object) = object.filter(|object| uid(object) == of) else {
                continue;
            };
            open.wait.is_copy = open.wait.is_copy || waits_for_copy(api, &object);
            if ["Bound", "Running"].contains(&text(&object, "/status/phase")) {
                let wait = open.end(api, &object, &notes.steps);
                notes.done.extend(wait);
            } else {
                notes.open.insert(of, open);
            }
        }
    }

    /// The waits that are over.
    pub(crate) fn done(&self) -> Vec<Wait> {
        self.0.lock().done.clone()
    }
}

impl Open {
    /// The wait, which is over now. `None` if it can't be compared with another.
    fn end(self, api: &FakeApi, object: &Value, steps: &BTreeMap<String, usize>) -> Option<Wait> {
        let mut claims = Vec::new();
        for (claim, is_own) in claims_of(object) {
            let at = path_in(namespace(object), "persistentvolumeclaims", &claim);
            let claim = api.shared_at(&at)?;
            // It was made again, as an event advised: the pod waited for another one.
            if !is_own && !steps.contains_key(uid(&claim)) {
                return None;
            }
            claims.push(claim);
        }
        // The copies of its claims have waits of their own.
        if claims.iter().any(|claim| has_source(claim)) {
            return None;
        }
        let mut about: Vec<&str> = claims.iter().map(|claim| uid(claim)).collect();
        let mut wait = self.wait;
        wait.with
            .extend(about.iter().filter_map(|claim| steps.get(*claim)));
        about.push(uid(object));
        let events = api.shared("events");
        if events.iter().any(|event| says_no_room(event, &about)) {
            return None;
        }
        let time = shim::now().saturating_sub(self.since);
        wait.millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Some(wait)
    }
}

/// True if a pod has an inline volume, and its namespace has as many as one node allows it already.
fn may_wait_for_inline_volumes(api: &FakeApi, pod: &Value) -> bool {
    let pods = api.shared("pods");
    let with = pods
        .iter()
        .filter(|other| namespace(other) == namespace(pod) && has_inline_volume(other));
    has_inline_volume(pod) && with.count() > INLINE_OF_NAMESPACE
}

fn has_inline_volume(pod: &Value) -> bool {
    items(pod, "/spec/volumes").any(|volume| volume["csi"].is_object())
}

fn has_source(claim: &Value) -> bool {
    !claim["spec"]["dataSource"].is_null()
}

/// The source of a claim, if it exists.
fn source(api: &FakeApi, claim: &Value) -> Option<Arc<Value>> {
    let plural = match text(claim, "/spec/dataSource/kind") {
        "VolumeSnapshot" => "volumesnapshots",
        _ => "persistentvolumeclaims",
    };
    let name = text(claim, "/spec/dataSource/name");
    let at = path_in(namespace(claim), plural, name);
    api.shared_at(&at).filter(|_| !name.is_empty())
}

/// True if a source can be copied at once.
fn is_ready(source: &Value) -> bool {
    source["status"]["phase"] == "Bound" || source["status"]["readyToUse"] == true
}

/// True if a pod is on its node, and the volume of one of its claims is being copied. The pod waits
/// for the end of a copy that has begun.
fn waits_for_copy(api: &FakeApi, pod: &Value) -> bool {
    if text(pod, "/spec/nodeName").is_empty() {
        return false;
    }
    claims_of(pod).into_iter().any(|(claim, _)| {
        let at = path_in(namespace(pod), "persistentvolumeclaims", &claim);
        let claim = api.shared_at(&at);
        claim.is_some_and(|claim| is_copied(api, &claim))
    })
}

/// True if a snapshot, a group or a clone is being made of the volume of a claim.
fn is_copied(api: &FakeApi, claim: &Value) -> bool {
    let volume = text(claim, "/spec/volumeName");
    let volume = api
        .shared_at(&volume_path(volume))
        .filter(|_| !volume.is_empty());
    let Some(volume) = volume else {
        return false;
    };
    let handle = text(&volume, "/spec/csi/volumeHandle");
    let contents = api.shared("volumesnapshotcontents");
    let of_groups = api.shared("volumegroupsnapshotcontents");
    let claims = api.shared("persistentvolumeclaims");
    let mut unready = contents.iter().filter(|content| !is_ready(content));
    let mut unready_groups = of_groups.iter().filter(|content| !is_ready(content));
    unready.any(|content| text(content, "/spec/source/volumeHandle") == handle)
        || unready_groups.any(|content| {
            items(content, "/spec/source/volumeHandles").any(|source| source == handle)
        })
        || claims
            .iter()
            .any(|clone| is_unbound(clone) && is_clone(clone, claim))
}

/// True if one claim is to be a clone of the other.
fn is_clone(claim: &Value, of: &Value) -> bool {
    text(claim, "/spec/dataSource/kind") == "PersistentVolumeClaim"
        && text(claim, "/spec/dataSource/name") == name(of)
        && namespace(claim) == namespace(of)
}

/// True if an event says that one of these objects lacks space. It does not wait for others' work.
fn says_no_room(event: &Value, about: &[&str]) -> bool {
    let note = event_note(event);
    about.contains(&text(event_about(event), "/uid")) && messages::lacks_room(note)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(class: &str, phase: &str) -> Value {
        json!({"kind": "PersistentVolumeClaim",
            "metadata": {"name": "c1", "namespace": crate::cluster::NAMESPACE, "uid": "1"},
            "spec": {"storageClassName": class}, "status": {"phase": phase}})
    }

    fn made(class: &str) -> Action {
        Action::Claim {
            name: "c1".to_owned(),
            class: class.to_owned(),
            size: "1".to_owned(),
            block: false,
            mode: "ReadWriteOnce".to_owned(),
            source: None,
            attributes: None,
        }
    }

    #[test]
    fn waits_of_claims() {
        let no_room = json!({"kind": "Event", "reason": "ProvisioningFailed", "note": "no room",
            "metadata": {"name": "e", "namespace": "u"}, "regarding": {"uid": "1"}});
        for (class, event, expected) in [
            ("ext4-now", None, 1),
            // It waits for its first pod.
            ("ext4", None, 0),
            ("ext4-now", Some(no_room), 0),
        ] {
            let (api, waits) = (FakeApi::with_snapshots(), Waits::default());
            api.put(claim(class, "Pending"));
            waits.begin(&api, 5, &made(class));
            waits.look(&api);
            assert!(waits.done().is_empty());
            if let Some(event) = event {
                api.put(event);
            }
            api.put(claim(class, "Bound"));
            waits.look(&api);
            assert_eq!(waits.done().len(), expected, "{class}");
        }
    }

    #[test]
    fn a_pod_may_wait_for_the_inline_volumes_of_others() {
        let pod = |name: &str, volume: Value| {
            json!({"kind": "Pod", "spec": {"volumes": [volume]},
                "metadata": {"name": name, "namespace": crate::cluster::NAMESPACE}})
        };
        let inline = || json!({"name": "v0", "csi": {"driver": "d"}});
        let api = FakeApi::with_snapshots();
        for (name, expected) in [("p0", false), ("p1", false), ("p2", true)] {
            let pod = pod(name, inline());
            api.put(pod.clone());
            assert_eq!(may_wait_for_inline_volumes(&api, &pod), expected, "{name}");
        }
        let other = pod("p3", json!({"persistentVolumeClaim": {"claimName": "c1"}}));
        assert!(!may_wait_for_inline_volumes(&api, &other));
    }

    #[test]
    fn a_pod_waits_for_the_copies_of_its_volumes() {
        let namespace = crate::cluster::NAMESPACE;
        let content = |handle: &str, is_ready: bool| {
            json!({"kind": "VolumeSnapshotContent", "metadata": {"name": "s"},
                "spec": {"source": {"volumeHandle": handle}}, "status": {"readyToUse": is_ready}})
        };
        let group = json!({"kind": "VolumeGroupSnapshotContent", "metadata": {"name": "g"},
            "spec": {"source": {"volumeHandles": ["w", "v"]}}});
        let clone = |phase: &str| {
            json!({"kind": "PersistentVolumeClaim",
                "metadata": {"name": "c2", "namespace": namespace}, "status": {"phase": phase},
                "spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "c1"}}})
        };
        for (copy, node, expected) in [
            (None, "n1", false),
            (Some(content("v", false)), "n1", true),
            (Some(content("v", false)), "", false),
            (Some(content("v", true)), "n1", false),
            (Some(content("w", false)), "n1", false),
            (Some(group), "n1", true),
            (Some(clone("Pending")), "n1", true),
            (Some(clone("Bound")), "n1", false),
        ] {
            let api = FakeApi::with_snapshots();
            let mut claim = claim("ext4-now", "Bound");
            claim["spec"]["volumeName"] = json!("pv");
            api.put(claim);
            api.put(
                json!({"kind": "PersistentVolume", "metadata": {"name": "pv"},
                "spec": {"csi": {"volumeHandle": "v"}}}),
            );
            let label = format!("{copy:?} {node:?}");
            if let Some(copy) = copy {
                api.put(copy);
            }
            let volume = json!({"persistentVolumeClaim": {"claimName": "c1"}});
            let pod = json!({"metadata": {"name": "p", "namespace": namespace},
                "spec": {"nodeName": node, "volumes": [volume]}});
            assert_eq!(waits_for_copy(&api, &pod), expected, "{label}");
        }
    }
}
