//! Volumes with known content, and snapshots of an earlier content, that one version made.

use std::collections::BTreeMap;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::wait_for;
use hostloop_test::front::fields::{is_ready_to_use, name};
use hostloop_test::front::objects::{self, Place};
use serde_json::{Value, json};

use crate::site::{SPACE, Site};
use crate::volume::{Kind, Volume};

const IDLE: [&str; 2] = ["sleep", "1000000"];

/// The kinds that are in one group snapshot. Each other volume has a snapshot of its own.
const GROUPED: [&str; 2] = ["ext4", "xfs"];

/// The volumes of a pod.
pub(crate) struct Kept {
    /// The version that made them, and the name of the pod.
    by: &'static str,
    node: u32,
    volumes: Vec<Volume>,
    identity: Value,
    /// For each kind, its snapshot and the sum of the content then.
    snapshots: BTreeMap<&'static str, (String, String)>,
    /// For each kind, the sum of the content now.
    sums: BTreeMap<&'static str, String>,
}

impl Kept {
    /// Makes volumes on a node, with content, snapshots and other content. The pod keeps running.
    pub(crate) async fn make(site: &Site, by: &'static str, node: u32) -> Kept {
        let label = |kind: &Kind| {
            if GROUPED.contains(&kind.name) {
                json!({"metadata": {"labels": {"group": by}}})
            } else {
                json!({})
            }
        };
        let volumes = site.volumes(by, label).await;
        site.run(by, node, &IDLE, &volumes.iter().collect::<Vec<_>>())
            .await;
        let identity = site.identity(by).await;
        let then = write(site, by, &volumes);
        let mut snapshots = BTreeMap::new();
        for snapshot in snapshots_of(by, &volumes) {
            site.objects.create(snapshot).await;
        }
        for volume in &volumes {
            let snapshot = ready_snapshot(site, &volume.claim).await;
            snapshots.insert(volume.kind.name, (snapshot, then[volume.kind.name].clone()));
        }
        let sums = write(site, by, &volumes);
        assert!(
            sums.iter().all(|(kind, sum)| then[kind] != *sum),
            "{then:?} and {sums:?}"
        );
        Kept {
            by,
            node,
            volumes,
            identity,
            snapshots,
            sums,
        }
    }

    /// The pod's container is the first one, and it reads what it wrote.
    pub(crate) async fn assert_undisturbed(&self, site: &Site) {
        assert_eq!(site.identity(self.by).await, self.identity, "{}", self.by);
        assert_eq!(read(site, self.by, &self.volumes), self.sums, "{}", self.by);
    }

    /// Ends the pod.
    pub(crate) fn unmount(&self, site: &Site) {
        site.remove_pod(self.by);
    }

    /// Another pod reads the volumes, and new volumes from the snapshots. Returns their number.
    pub(crate) async fn assert_readable(&self, site: &Site, by: &str) -> usize {
        let pod = format!("{}-read-by-{by}", self.by);
        let source = |kind: &Kind| objects::restored(&self.snapshots[kind.name].0);
        let restored = site.volumes(&pod, source).await;
        let both: Vec<_> = self.volumes.iter().chain(&restored).collect();
        site.run(&pod, self.node, &IDLE, &both).await;
        assert_eq!(read(site, &pod, &self.volumes), self.sums, "{pod}");
        let then = self
            .snapshots
            .iter()
            .map(|(kind, (_, sum))| (*kind, sum.clone()))
            .collect();
        assert_eq!(read(site, &pod, &restored), then, "{pod}: restored");
        site.remove_pod(&pod);
        for volume in &restored {
            let claim = Place::of("PersistentVolumeClaim", SPACE, &volume.claim);
            site.objects.delete(&claim).await;
        }
        both.len()
    }
}

/// Writes random content to each volume, and returns its sum.
fn write(site: &Site, pod: &str, volumes: &[Volume]) -> BTreeMap<&'static str, String> {
    for volume in volumes {
        let path = volume.path("data");
        site.sh(
            pod,
            &format!("dd if=/dev/urandom of={path} bs=1M count=4 conv=fsync 2>/dev/null"),
        );
    }
    read(site, pod, volumes)
}

/// The sum of the content of each volume.
fn read(site: &Site, pod: &str, volumes: &[Volume]) -> BTreeMap<&'static str, String> {
    let sum = |volume: &Volume| {
        let path = volume.path("data");
        let script = format!("dd if={path} bs=1M count=4 2>/dev/null | sha256sum");
        (volume.kind.name, site.sh(pod, &script))
    };
    volumes.iter().map(sum).collect()
}

/// The group snapshot of some volumes, and the snapshots of the others.
fn snapshots_of(by: &str, volumes: &[Volume]) -> Vec<Value> {
    let group = objects::group_snapshot(SPACE, by, "hostloop", ("group", by));
    let single =
        |volume: &Volume| objects::snapshot(SPACE, &volume.claim, "hostloop", &volume.claim);
    let others = volumes
        .iter()
        .filter(|volume| !GROUPED.contains(&volume.kind.name));
    std::iter::once(group).chain(others.map(single)).collect()
}

/// Waits until the snapshot of a claim is ready, and returns its name.
async fn ready_snapshot(site: &Site, claim: &str) -> String {
    wait_for(&format!("a snapshot of {claim}"), PATIENCE, async || {
        let all = site.objects.list("VolumeSnapshot", SPACE).await;
        let of = |s: &&Value| s["spec"]["source"]["persistentVolumeClaimName"] == claim;
        match all.iter().find(of) {
            Some(snapshot) if is_ready_to_use(snapshot) => Ok(name(snapshot).to_owned()),
            found => Err(format!("{:?}", found.map(|s| s["status"].to_string()))),
        }
    })
    .await
}
