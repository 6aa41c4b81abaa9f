//! What must hold: safety after each step, and after a quiet time that everything is done, or says
//! what to do.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_driver::kernel::{LoopDevices, Mounts};
use serde_json::Value;

use crate::cluster::{Cluster, NAMESPACE};
use crate::model::uses;
use crate::model::view::{is_deleting, name as name_of};
use crate::trace;
use crate::users::{ENOUGH, bytes, path, volume_path};

/// What the oracle knows of a PersistentVolume.
struct Volume {
    name: String,
    retained: bool,
    /// It may hold data: it was in use, or it is a copy.
    valuable: bool,
    gone: bool,
}

/// What the oracle remembers. A cluster does not remember what was promised.
#[derive(Default)]
pub(crate) struct Oracle {
    /// By handle.
    volumes: BTreeMap<String, Volume>,
    /// Snapshots that are to stay, by handle.
    kept_snapshots: BTreeMap<String, bool>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The messages of all events about an object.
fn events(cluster: &Cluster, object: &Value) -> Vec<String> {
    let uid = &object["metadata"]["uid"];
    let events = cluster.api.all("events").into_iter();
    let about = events.filter(|event| {
        event["involvedObject"]["uid"] == *uid || event["regarding"]["uid"] == *uid
    });
    about
        .map(|event| {
            let note = if event["message"].is_null() {
                &event["note"]
            } else {
                &event["message"]
            };
            format!("{}: {}", text(&event["reason"]), text(note))
        })
        .collect()
}

impl Oracle {
    /// Checks what must hold at any time.
    pub(crate) fn safety(&mut self, cluster: &Cluster) {
        let objects = cluster.api.all("persistentvolumes");
        let of_claims = cluster.api.all("persistentvolumeclaims");
        let mut claims: BTreeMap<String, String> = BTreeMap::new();
        for object in &objects {
            let spec = &object["spec"];
            let handle = text(&spec["csi"]["volumeHandle"]).to_owned();
            let claim = text(&spec["claimRef"]["uid"]).to_owned();
            if let Some(other) = claims.insert(claim.clone(), name_of(object).to_owned())
                && !claim.is_empty()
            {
                trace::violation(format!(
                    "two volumes for one claim: {other} and {}",
                    name_of(object)
                ));
            }
            let known = self
                .volumes
                .entry(handle.clone())
                .or_insert_with(|| Volume {
                    name: name_of(object).to_owned(),
                    retained: false,
                    valuable: false,
                    gone: false,
                });
            known.retained = spec["persistentVolumeReclaimPolicy"] == "Retain";
            let is_copy = of_claims.iter().any(|one| {
                one["metadata"]["uid"] == *claim && !one["spec"]["dataSource"].is_null()
            });
            known.valuable |= is_copy || cluster.kubelet.uses(&handle);
        }
        let pool: BTreeSet<String> = cluster
            .pools
            .volumes()
            .iter()
            .map(|volume| volume.id.to_string())
            .collect();
        for (handle, known) in &mut self.volumes {
            let object = objects
                .iter()
                .find(|one| one["spec"]["csi"]["volumeHandle"] == **handle);
            match object {
                _ if pool.contains(handle) => {}
                // The object goes after the volume.
                Some(object) if !is_deleting(object) && object["status"]["phase"] == "Bound" => {
                    trace::violation(format!(
                        "data lost: the volume of bound {} is gone",
                        known.name
                    ));
                }
                _ if known.retained && known.valuable && !known.gone => {
                    trace::violation(format!(
                        "data lost: the volume {} had the policy Retain and data, and is gone",
                        known.name
                    ));
                    known.gone = true;
                }
                _ => {}
            }
        }
        self.kept_snapshots_stay(cluster);
    }

    /// Checks that no snapshot is lost that was to be kept.
    fn kept_snapshots_stay(&mut self, cluster: &Cluster) {
        let snapshots: Vec<String> = cluster
            .pools
            .snapshots()
            .iter()
            .map(|one| one.id.to_string())
            .collect();
        for content in cluster.api.all("volumesnapshotcontents") {
            let handle = text(&content["status"]["snapshotHandle"]);
            if snapshots.iter().any(|one| one == handle) {
                let kept = content["spec"]["deletionPolicy"] == "Retain";
                self.kept_snapshots.insert(handle.to_owned(), kept);
            }
        }
        for (handle, kept) in &mut self.kept_snapshots {
            if *kept && !snapshots.contains(handle) {
                trace::violation(format!("data lost: the snapshot {handle} was to be kept"));
                *kept = false;
            }
        }
    }

    /// Checks after a quiet time that all is done, or says why not. With `strict`, the advice of
    /// events about sizes and attributes was followed.
    pub(crate) fn liveness(&self, cluster: &Cluster, strict: bool) {
        let pods = cluster.api.all("pods");
        for claim in cluster.api.all("persistentvolumeclaims") {
            let name = name_of(&claim);
            let used = pods.iter().any(|pod| uses(pod, name));
            if is_deleting(&claim) {
                let protected = claim["metadata"]["finalizers"].as_array();
                let by_pod = protected.is_some_and(|all| {
                    all.iter().any(|one| *one == "kubernetes.io/pvc-protection")
                });
                if !(used && by_pod) && events(cluster, &claim).is_empty() {
                    trace::violation(format!("claim {name} is not gone: {}", state(&claim)));
                }
                continue;
            }
            if claim["status"]["phase"] == "Bound" {
                bound(cluster, &claim, strict);
            } else {
                pending(cluster, &claim, used);
            }
        }
        for snapshot in cluster.api.all("volumesnapshots") {
            let status = &snapshot["status"];
            let says = !status["error"].is_null() || !events(cluster, &snapshot).is_empty();
            if status["readyToUse"] != true && !says {
                trace::violation(format!(
                    "snapshot {} is neither ready nor explained: {}",
                    name_of(&snapshot),
                    state(&snapshot)
                ));
            }
        }
        for pod in &pods {
            if is_deleting(pod) {
                trace::violation(format!("pod {} is not gone", name_of(pod)));
            }
        }
    }

    /// Checks after everything was deleted, and a quiet time, that nothing is left but what was to
    /// be kept.
    pub(crate) fn emptiness(&self, cluster: &Cluster) {
        let kinds = [
            "pods",
            "persistentvolumeclaims",
            "persistentvolumes",
            "volumesnapshots",
            "volumesnapshotcontents",
            "volumeattachments",
        ];
        for kind in kinds {
            for object in cluster.api.all(kind) {
                trace::violation(format!(
                    "not deleted: {kind} {}: {}; {}",
                    name_of(&object),
                    state(&object),
                    events(cluster, &object).join("; ")
                ));
            }
        }
        if !cluster.kubelet.is_idle() {
            trace::violation("left: kubelet still uses volumes");
        }
        for volume in cluster.pools.volumes() {
            let id = volume.id.to_string();
            let kept = self.volumes.get(&id).is_some_and(|known| known.retained);
            if !kept {
                trace::violation(format!("left in the pool: volume {}", volume.name));
            }
        }
        for snapshot in cluster.pools.snapshots() {
            if self.kept_snapshots.get(&snapshot.id.to_string()) != Some(&true) {
                trace::violation(format!("left in the pool: snapshot {}", snapshot.name));
            }
        }
        let loops = cluster.kernel.loops().map_or(1, |loops| loops.len());
        let mounts = cluster
            .kernel
            .mounts()
            .map_or(0, |mounts| mounts.entries.len());
        if loops > 0 || mounts > 2 {
            trace::violation(format!(
                "left in the kernel: {loops} loop devices, {mounts} mounts"
            ));
        }
    }
}

fn bound(cluster: &Cluster, claim: &Value, strict: bool) {
    let (name, status) = (name_of(claim), &claim["status"]);
    let requested = bytes(&claim["spec"]["resources"]["requests"]["storage"]);
    let has = bytes(&status["capacity"]["storage"]);
    let volume = cluster
        .api
        .get(&volume_path(text(&claim["spec"]["volumeName"])));
    let handle = volume
        .as_ref()
        .map(|volume| text(&volume["spec"]["csi"]["volumeHandle"]));
    if requested > has {
        let says = events(cluster, claim);
        let resize = text(&status["allocatedResourceStatuses"]["storage"]);
        let conditions = status["conditions"].as_array();
        let is_pending = |one: &Value| one["type"] == "FileSystemResizePending";
        let by_node = resize.starts_with("NodeResize")
            || conditions.is_some_and(|all| all.iter().any(is_pending));
        let at_mount = by_node && !handle.is_some_and(|handle| cluster.kubelet.uses(handle));
        let explained = if strict {
            is_full(cluster)
        } else {
            !says.is_empty()
        };
        if !at_mount && !explained {
            trace::violation(format!(
                "not expanded: claim {name} requests {requested} and has {has} ({resize}); {}",
                says.join("; ")
            ));
        }
    }
    let wanted = &claim["spec"]["volumeAttributesClassName"];
    let current = &status["currentVolumeAttributesClassName"];
    if !text(wanted).is_empty() && wanted != current {
        let says = events(cluster, claim);
        if strict || says.is_empty() {
            trace::violation(format!(
                "not modified: claim {name} has the attributes {current} instead of {wanted}: {}; {}",
                status["modifyVolumeStatus"],
                says.join("; ")
            ));
        }
    }
    if volume.is_none() {
        trace::violation(format!(
            "claim {name} is bound to a volume that does not exist"
        ));
    }
}

/// True if the pool has no room for even a little more.
fn is_full(cluster: &Cluster) -> bool {
    const LITTLE: u64 = 32 << 20;
    let capacities = cluster.api.all("csistoragecapacities");
    let mut ext4 = capacities
        .iter()
        .filter(|one| one["storageClassName"] == "ext4");
    ext4.all(|one| bytes(&one["capacity"]) < LITTLE)
}

fn pending(cluster: &Cluster, claim: &Value, used: bool) {
    let name = name_of(claim);
    if claim["status"]["phase"] == "Lost" {
        return;
    }
    let class = text(&claim["spec"]["storageClassName"]);
    let mut says = events(cluster, claim);
    for pod in cluster.api.all("pods").iter().filter(|pod| uses(pod, name)) {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        says.extend(conditions.map(|one| text(&one["message"]).to_owned()));
    }
    let waits = !class.ends_with("-now") && !used;
    if says.is_empty() && !waits {
        trace::violation(format!(
            "claim {name} is pending, and nothing says why: {}",
            state(claim)
        ));
    }
    let enough = claim["metadata"]["annotations"][ENOUGH].as_str();
    let requested = &claim["spec"]["resources"]["requests"]["storage"];
    let small = says
        .iter()
        .find(|text| text.contains("needs at least") || text.contains("smaller"));
    if let (Some(enough), Some(small)) = (enough, small)
        && bytes(requested) >= bytes(&Value::from(enough))
    {
        trace::violation(format!(
            "not restored: claim {name} requests {requested}, as its source did ({enough}): {small}"
        ));
    }
}

/// What of an object says why it is as it is.
fn state(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        "deleted {}, finalizers {}, spec {}, status {}",
        metadata["deletionTimestamp"], metadata["finalizers"], object["spec"], object["status"]
    )
}

/// What users can do after an event's advice, in the order in which they do it: paths and merge
/// patches.
pub(crate) fn advice(cluster: &Cluster) -> Vec<(String, Value)> {
    let mut advice = Vec::new();
    for claim in cluster.api.all("persistentvolumeclaims") {
        let (status, at) = (
            &claim["status"],
            path("persistentvolumeclaims", name_of(&claim)),
        );
        if is_deleting(&claim) || status["phase"] != "Bound" {
            continue;
        }
        let requested = bytes(&claim["spec"]["resources"]["requests"]["storage"]);
        let has = bytes(&status["capacity"]["storage"]);
        if requested > has + 1 {
            advice.push((at.clone(), crate::users::request_of(has + 1)));
        }
        let (wanted, current) = (
            &claim["spec"]["volumeAttributesClassName"],
            &status["currentVolumeAttributesClassName"],
        );
        if !text(wanted).is_empty() && wanted != current {
            let class = if text(current).is_empty() {
                Value::from("direct")
            } else {
                current.clone()
            };
            advice.push((
                at,
                serde_json::json!({"spec": {"volumeAttributesClassName": class}}),
            ));
        }
    }
    advice
}

/// Everything that users and an administrator delete at the end: pods, snapshots and claims first.
pub(crate) fn everything(cluster: &Cluster) -> [Vec<String>; 2] {
    let of = |plural: &str, path: &dyn Fn(&str) -> String| -> Vec<String> {
        let objects = cluster.api.all(plural).into_iter();
        let ours = objects.filter(|object| {
            object["metadata"]["namespace"].is_null()
                || object["metadata"]["namespace"] == NAMESPACE
        });
        ours.map(|object| path(name_of(&object))).collect()
    };
    let mut first = Vec::new();
    for plural in ["pods", "volumesnapshots", "persistentvolumeclaims"] {
        first.extend(of(plural, &|name| path(plural, name)));
    }
    let mut second = of("persistentvolumes", &volume_path);
    second.extend(of("volumesnapshotcontents", &crate::users::content_path));
    [first, second]
}
