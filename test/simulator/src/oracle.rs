//! What must hold: safety after each step, and after a quiet time that everything is done, or says
//! what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hostloop_driver::kernel::{LoopDevices, Mounts};
use hostloop_driver::storage::Provisioning;
use http::Method;
use serde_json::{Value, json};

use crate::cluster::{Cluster, GREEDY, NAMESPACE};
use crate::machine::Machine;
use crate::model::view::{is_deleting, name as name_of, namespace, uid};
use crate::users::{ENOUGH, ENOUGH_OF, bytes, path_in, request_of, volume_path};
use crate::{shim, trace};

mod deletions;
mod images;
mod objects;
mod records;

use objects::Objects;

/// What the oracle knows of a PersistentVolume.
struct Volume {
    name: String,
    retained: bool,
    /// It may hold data: it was in use, or it is a copy.
    valuable: bool,
    gone: bool,
}

/// How long calls go on that were under way when the API server went back to a backup.
const ECHO: Duration = Duration::from_secs(60);

/// What the oracle remembers. A cluster does not remember what was promised.
#[derive(Default)]
pub(crate) struct Oracle {
    /// By handle.
    volumes: BTreeMap<String, Volume>,
    /// Snapshots that are to stay, by handle.
    kept_snapshots: BTreeMap<String, bool>,
    lost: Lost,
}

/// What a backup of the API server does not fit.
#[derive(Default)]
struct Lost {
    /// When the API server last went back.
    since: Option<Duration>,
    /// Handles of objects that came back after the deletion of their data.
    data: BTreeSet<String>,
    /// Handles of data that has lost its objects, because they came after the backup.
    objects: BTreeSet<String>,
}

impl Lost {
    /// Notes what does not fit, while calls from before may still end.
    fn note(&mut self, cluster: &Cluster) {
        if self.since.is_none_or(|since| shim::now() > since + ECHO) {
            return;
        }
        let data = cluster.handles();
        let volumes = cluster.api.all("persistentvolumes").into_iter();
        let volumes = volumes.map(|one| text(&one["spec"]["csi"]["volumeHandle"]).to_owned());
        let contents = cluster.api.all("volumesnapshotcontents").into_iter();
        let snapshots = contents.map(|one| text(&one["status"]["snapshotHandle"]).to_owned());
        let objects: BTreeSet<String> = volumes.chain(snapshots).collect();
        self.data.extend(objects.difference(&data).cloned());
        self.objects.extend(data.difference(&objects).cloned());
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Oracle {
    /// The API server went back to a backup. What was deleted since is not lost by this: its object
    /// is back, its data is not.
    pub(crate) fn went_back(&mut self, cluster: &Cluster) {
        self.lost.since = Some(shim::now());
        self.lost.note(cluster);
        for (handle, known) in &mut self.volumes {
            known.gone |= self.lost.data.contains(handle);
        }
        for (handle, kept) in &mut self.kept_snapshots {
            *kept &= !self.lost.data.contains(handle);
        }
    }

    /// Checks what must hold at any time.
    pub(crate) fn safety(&mut self, cluster: &Cluster) {
        self.lost.note(cluster);
        let objects = cluster.api.shared("persistentvolumes");
        images::are_whole(cluster, &objects);
        let of_claims = cluster.api.shared("persistentvolumeclaims");
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
            known.valuable |= is_copy || cluster.uses(&handle);
        }
        let pool = cluster.handles();
        for (handle, known) in &mut self.volumes {
            let object = objects
                .iter()
                .find(|one| one["spec"]["csi"]["volumeHandle"] == **handle);
            match object {
                _ if pool.contains(handle) || self.lost.data.contains(handle) => {}
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
        let pool = cluster.handles();
        for content in cluster.api.shared("volumesnapshotcontents") {
            let handle = text(&content["status"]["snapshotHandle"]);
            if pool.contains(handle) {
                let kept = content["spec"]["deletionPolicy"] == "Retain";
                self.kept_snapshots.insert(handle.to_owned(), kept);
            }
        }
        for (handle, kept) in &mut self.kept_snapshots {
            if *kept && !pool.contains(handle) && !self.lost.data.contains(handle) {
                trace::violation(format!("data lost: the snapshot {handle} was to be kept"));
                *kept = false;
            }
        }
    }

    /// Checks after a quiet time that all is done, or says why not. With `strict`, the advice of
    /// events was followed.
    pub(crate) fn liveness(&self, cluster: &Cluster, strict: bool) {
        let objects = Objects::of(cluster);
        not_starved(&objects);
        records::are_named(cluster);
        images::are_known(cluster);
        for claim in objects.claims.iter().filter(|claim| !is_deleting(claim)) {
            if claim["status"]["phase"] == "Bound" {
                self.bound(cluster, &objects, claim, strict);
            } else {
                pending(&objects, claim);
            }
        }
        let snapshots = objects.snapshots.iter();
        for snapshot in snapshots.filter(|snapshot| !is_deleting(snapshot)) {
            let status = &snapshot["status"];
            if status["readyToUse"] == true || !status["error"].is_null() {
                continue;
            }
            let mut reasons = objects.reasons(snapshot);
            if let Some(content) = objects.content(snapshot) {
                reasons.extend(objects.reasons(content));
            }
            if reasons.is_empty() {
                trace::violation(format!(
                    "snapshot {} is neither ready nor explained: {}",
                    name_of(snapshot),
                    state(snapshot)
                ));
            }
        }
        deletions::check(&objects, strict);
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
        let objects = Objects::of(cluster);
        for kind in kinds {
            for object in cluster.api.all(kind) {
                trace::violation(format!(
                    "not deleted: {kind} {}: {}; {}",
                    name_of(&object),
                    state(&object),
                    objects.history(&object)
                ));
            }
        }
        for machine in &cluster.machines {
            if !machine.kubelet.is_idle() {
                trace::violation("left: kubelet still uses volumes");
            }
            let kernel = machine.kernel();
            let loops = kernel.loops().map_or(1, |loops| loops.len());
            let mounts = kernel.mounts().map_or(0, |mounts| mounts.entries.len());
            if loops > 0 || mounts > 2 {
                trace::violation(format!(
                    "left in the kernel: {loops} loop devices, {mounts} mounts"
                ));
            }
        }
        self.unreadable_are_deleted(cluster);
        let contents = cluster.contents();
        for volume in contents.volumes {
            let id = volume.id.to_string();
            let kept = self.volumes.get(&id).is_some_and(|known| known.retained);
            // If data came after the backup, or a copy's claim did, the wish to keep it is lost, too.
            let had_no_object = !self.volumes.contains_key(&id) && self.lost.since.is_some();
            let is_lost = self.lost.objects.contains(&id) || had_no_object;
            let unknown = is_lost && !volume.is_empty();
            if !kept && !unknown {
                trace::violation(format!("left in the pool: volume {}", volume.name));
            }
        }
        for snapshot in contents.snapshots {
            let id = snapshot.id.to_string();
            let kept = self.kept_snapshots.get(&id) == Some(&true);
            if !kept && !self.lost.objects.contains(&id) {
                trace::violation(format!("left in the pool: snapshot {}", snapshot.name));
            }
        }
    }

    fn bound(&self, cluster: &Cluster, objects: &Objects, claim: &Value, strict: bool) {
        let (name, status) = (name_of(claim), &claim["status"]);
        let volume = cluster
            .api
            .get(&volume_path(text(&claim["spec"]["volumeName"])));
        let Some(volume) = volume else {
            trace::violation(format!(
                "claim {name} is bound to a volume that does not exist"
            ));
            return;
        };
        let handle = text(&volume["spec"]["csi"]["volumeHandle"]);
        // Without its record, the driver can't change a volume. `records` checks that it says so.
        if self.lost.data.contains(handle) || cluster.unreadable().contains(handle) {
            return;
        }
        let reasons = objects.reasons(claim);
        let requested = bytes(&claim["spec"]["resources"]["requests"]["storage"]);
        let has = bytes(&status["capacity"]["storage"]);
        if requested > has {
            let resize = text(&status["allocatedResourceStatuses"]["storage"]);
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let by_node = resize.starts_with("NodeResize")
                || conditions.any(|one| one["type"] == "FileSystemResizePending");
            let at_mount = by_node && !cluster.uses(handle);
            let explained = if strict {
                !has_room(cluster, claim, handle)
            } else {
                !reasons.is_empty()
            };
            if !at_mount && !explained {
                trace::violation(format!(
                    "not expanded: claim {name} requests {requested} and has {has} ({resize}); {}",
                    objects.history(claim)
                ));
            }
        }
        let wanted = &claim["spec"]["volumeAttributesClassName"];
        let current = &status["currentVolumeAttributesClassName"];
        if !text(wanted).is_empty() && wanted != current && (strict || reasons.is_empty()) {
            trace::violation(format!(
                "not modified: claim {name} has the attributes {current} instead of {wanted}: {}; {}",
                status["modifyVolumeStatus"],
                objects.history(claim)
            ));
        }
    }
}

/// True if the pool of a claim's volume has room to expand it by a little. The driver knows it
/// best: the cluster's capacity objects may be late.
fn has_room(cluster: &Cluster, claim: &Value, handle: &str) -> bool {
    /// Others may have taken some of it meanwhile.
    const LITTLE: u64 = 32 << 20;
    /// A btrfs grows to this size at least.
    const BTRFS: u64 = 256 << 20;
    let class = text(&claim["spec"]["storageClassName"]);
    let has = bytes(&claim["status"]["capacity"]["storage"]);
    let needed = if class.starts_with("btrfs") {
        BTRFS.saturating_sub(has)
    } else {
        0
    };
    let is_thick = class.starts_with("thick")
        || claim["status"]["currentVolumeAttributesClassName"] == "thick";
    let provisioning = if is_thick {
        Provisioning::Thick
    } else {
        Provisioning::Thin
    };
    let Some(pools) = cluster.machine_of(handle).and_then(Machine::pools) else {
        return false;
    };
    let capacity = pools
        .named(None)
        .and_then(|pool| pool.capacity(provisioning));
    capacity.is_ok_and(|capacity| capacity.available >= needed + LITTLE)
}

/// Checks that no claim of the modest namespace has waited for a thread that is not for copies.
/// What takes these threads is short, whatever another namespace wants.
fn not_starved(objects: &Objects) {
    const WAITS: &str = "the call waits for the changes in its pool";
    let modest = objects.claims.iter();
    for claim in modest.filter(|claim| namespace(claim) == NAMESPACE) {
        let reasons = objects.reasons(claim);
        if let Some(why) = reasons.iter().find(|why| why.contains(WAITS)) {
            trace::violation(format!("starved: claim {}: {why}", name_of(claim)));
        }
    }
}

fn pending(objects: &Objects, claim: &Value) {
    let name = name_of(claim);
    if claim["status"]["phase"] == "Lost" {
        return;
    }
    let class = text(&claim["spec"]["storageClassName"]);
    let mut reasons = objects.reasons(claim);
    let mut is_used = false;
    for pod in objects.users(claim) {
        is_used = true;
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        reasons.extend(conditions.map(|one| text(&one["message"]).to_owned()));
    }
    let waits = !class.ends_with("-now") && !is_used;
    if reasons.is_empty() && !waits {
        trace::violation(format!(
            "claim {name} is pending, and nothing says why: {}",
            state(claim)
        ));
    }
    let annotations = &claim["metadata"]["annotations"];
    // Another source may have the name by now.
    let is_same = objects
        .source(claim)
        .is_some_and(|source| annotations[ENOUGH_OF] == uid(source));
    let requested = &claim["spec"]["resources"]["requests"]["storage"];
    let small = reasons
        .iter()
        .find(|text| text.contains("needs at least") || text.contains("smaller"));
    if let (Some(enough), Some(small), true) = (annotations[ENOUGH].as_str(), small, is_same)
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

/// What a user does after an event's advice.
pub(crate) struct Advice {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// A merge patch, or the options of a deletion.
    pub(crate) body: Value,
}

/// What users do after the advice of events, in this order.
pub(crate) fn advice(cluster: &Cluster) -> Vec<Advice> {
    let objects = Objects::of(cluster);
    let mut advice = Vec::new();
    for claim in &objects.claims {
        let status = &claim["status"];
        if is_deleting(claim) || status["phase"] != "Bound" {
            continue;
        }
        let requested = bytes(&claim["spec"]["resources"]["requests"]["storage"]);
        let has = bytes(&status["capacity"]["storage"]);
        if requested > has + 1 {
            advice.push(Advice::patch(claim, request_of(has + 1)));
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
            let patch = json!({"spec": {"volumeAttributesClassName": class}});
            advice.push(Advice::patch(claim, patch));
        }
    }
    let snapshots = deletions::keeping(&objects).map(|snapshot| Advice {
        method: Method::DELETE,
        path: path_in(namespace(snapshot), "volumesnapshots", name_of(snapshot)),
        body: json!({}),
    });
    advice.extend(snapshots);
    advice
}

impl Advice {
    fn patch(claim: &Value, body: Value) -> Advice {
        Advice {
            method: Method::PATCH,
            path: path_in(namespace(claim), "persistentvolumeclaims", name_of(claim)),
            body,
        }
    }
}

/// Everything that users and an administrator delete at the end: pods, snapshots and claims first.
pub(crate) fn everything(cluster: &Cluster) -> [Vec<String>; 2] {
    let mut first = Vec::new();
    for plural in ["pods", "volumesnapshots", "persistentvolumeclaims"] {
        let objects = cluster.api.all(plural);
        let ours = objects
            .iter()
            .filter(|object| [NAMESPACE, GREEDY].contains(&namespace(object)));
        first.extend(ours.map(|object| path_in(namespace(object), plural, name_of(object))));
    }
    let volumes = cluster.api.all("persistentvolumes");
    let contents = cluster.api.all("volumesnapshotcontents");
    let volumes = volumes.iter().map(|object| volume_path(name_of(object)));
    let contents = contents
        .iter()
        .map(|object| crate::users::content_path(name_of(object)));
    [first, volumes.chain(contents).collect()]
}
