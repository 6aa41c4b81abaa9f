//! One life of several volumes. Each step waits for what a user would see, and checks what the
//! driver did.

use hostloop_test::data;
use hostloop_test::front::objects::{self, Place};
use hostloop_test::loops;
use serde_json::{Value, json};

use crate::kubelet::{Mounted, finalizers, string};
use crate::site::{CLASS, DRIVER, NAMESPACE, Site, at};

/// Claims with this label are taken together.
const GROUPED: &str = "grouped";

/// From the first claim to the last object's end.
pub(crate) async fn lifecycle(site: &Site) {
    let claim = site.claim("data", labelled()).await;
    provisioned(&site.bound(&claim).await);
    let pod = Mounted::new(site, &claim).await;
    let first = data::write(&pod.data(), 1);

    expanded(site, &claim, &pod).await;
    modified(site, &claim).await;
    assert_eq!(data::read(&pod.data()), first);

    let snapshot = snapshot(site, "cut", "data").await;
    let second = data::write(&pod.data(), 2);
    let restored = site.claim("restored", from("VolumeSnapshot", "cut")).await;
    let clone = from("PersistentVolumeClaim", "data");
    let cloned = site.claim("cloned", objects::with(clone, labelled())).await;
    let of_snapshot = Mounted::new(site, &restored).await;
    assert_eq!(data::read(&of_snapshot.data()), first);
    let of_claim = Mounted::new(site, &cloned).await;
    assert_eq!(data::read(&of_claim.data()), second);

    grouped(site, &[&pod, &of_claim]).await;

    // A claim that goes while its volume is attached: the volume stays until it is detached.
    let volume = Place::of_object(&site.bound(&restored).await);
    of_snapshot.unmount(site).await;
    site.delete(&restored).await;
    site.until(&volume, "released", |v| v["status"]["phase"] == "Released").await;
    site.until_event(&volume, "VolumeFailedDelete").await;
    let volumes = site.csi.volume_ids().await;
    let there = volumes.contains(&of_snapshot.handle);
    assert!(there, "a volume in use was deleted");
    of_snapshot.detach(site).await;
    site.until_gone(&volume).await;

    // A snapshot outlives what it was taken of.
    for (claim, pod) in [(&claim, pod), (&cloned, of_claim)] {
        let volume = Place::of_object(&site.bound(claim).await);
        pod.end(site).await;
        site.until_gone(&volume).await;
    }
    let late = site.claim("late", from("VolumeSnapshot", "cut")).await;
    let pod = Mounted::new(site, &late).await;
    assert_eq!(data::read(&pod.data()), first);
    pod.end(site).await;
    site.delete(&snapshot).await;
}

/// What the provisioner wrote.
fn provisioned(volume: &Value) {
    let spec = &volume["spec"];
    let annotations = &volume["metadata"]["annotations"];
    assert_eq!(annotations["pv.kubernetes.io/provisioned-by"], DRIVER);
    assert_eq!(spec["csi"]["driver"], DRIVER);
    assert_eq!(spec["csi"]["fsType"], "xfs");
    assert_eq!(spec["mountOptions"], json!(["noatime"]));
    assert_eq!(spec["volumeAttributesClassName"], "direct");
    let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
    let key = &term["matchExpressions"][0]["key"];
    assert_eq!(*key, format!("topology.{DRIVER}/node"), "{spec}");
    let finalizer = "external-provisioner.volume.kubernetes.io/finalizer".to_owned();
    assert!(finalizers(volume).contains(&finalizer), "{volume}");
}

/// The claim asks for more while its volume is in use.
async fn expanded(site: &Site, claim: &Place, pod: &Mounted) {
    let before = pod.bytes();
    let more = json!({"spec": {"resources": {"requests": {"storage": "480Mi"}}}});
    site.objects.merge(claim, more).await;
    let pending = |c: &Value| {
        c["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizePending"
            && has_condition(c, "FileSystemResizePending")
    };
    site.until(claim, "waiting for its node", pending).await;
    pod.grow(site).await;
    let after = pod.bytes();
    assert!(after >= before + (100 << 20), "{before} bytes, then {after}");
    // The resizer removes the annotation that it keeps in between.
    let volume = Place::of_object(&site.bound(claim).await);
    site.until(&volume, "settled", |v| {
        v["metadata"]["annotations"]["volume.alpha.kubernetes.io/pre-resize-capacity"].is_null()
    })
    .await;
}

/// The claim moves to another class of attributes while its volume is in use.
async fn modified(site: &Site, claim: &Place) {
    let direct = || {
        let mut of_volumes = loops::beneath(site.scratch.path()).into_iter();
        let found = of_volumes.find(|l| l.backing.contains("/volumes/"));
        found.expect("the volume has a loop device").direct_io
    };
    assert!(direct(), "the class asks for direct I/O");
    let other = json!({"spec": {"volumeAttributesClassName": "buffered"}});
    site.objects.merge(claim, other).await;
    site.until(claim, "modified", |c| {
        c["status"]["currentVolumeAttributesClassName"] == "buffered"
            && c["status"]["modifyVolumeStatus"].is_null()
    })
    .await;
    let volume = site.bound(claim).await;
    assert_eq!(volume["spec"]["volumeAttributesClassName"], "buffered");
    assert!(!direct(), "the class asks for buffered I/O");
}

/// Takes a snapshot of a claim.
async fn snapshot(site: &Site, name: &str, claim: &str) -> Place {
    site.objects.create(objects::snapshot(NAMESPACE, name, CLASS, claim)).await;
    let place = at("VolumeSnapshot", name);
    let handle = ready(site, &place).await;
    assert!(site.csi.snapshot_ids().await.contains(&handle), "{handle}");
    place
}

/// Waits until a snapshot can be restored, and returns the driver's name of it.
async fn ready(site: &Site, snapshot: &Place) -> String {
    let ready =
        |s: &Value| s["status"]["readyToUse"] == true && s["status"]["restoreSize"].is_string();
    let made = site.until(snapshot, "ready", ready).await;
    let content = string(&made["status"]["boundVolumeSnapshotContentName"]);
    let content = at("VolumeSnapshotContent", &content);
    let content = site.objects.get(&content).await;
    let content = content.expect("the snapshot's content");
    string(&content["status"]["snapshotHandle"])
}

/// All claims with the label are taken at one moment, and each of the snapshots can be restored.
async fn grouped(site: &Site, pods: &[&Mounted]) {
    let written = (10..).zip(pods);
    let written: Vec<_> = written.map(|(seed, pod)| data::write(&pod.data(), seed)).collect();
    let group = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": "both", "namespace": NAMESPACE},
        "spec": {
            "volumeGroupSnapshotClassName": CLASS,
            "source": {"selector": {"matchLabels": {GROUPED: "yes"}}},
        },
    });
    let group = site.objects.create(group).await;
    let place = Place::of_object(&group);
    site.until(&place, "ready", |g| g["status"]["readyToUse"] == true).await;
    let members = members(site, &group).await;
    assert_eq!(members.len(), pods.len(), "{members:?}");
    let mut found = Vec::new();
    for (n, member) in members.iter().enumerate() {
        ready(site, &at("VolumeSnapshot", member)).await;
        let (name, spec) = (format!("member-{n}"), from("VolumeSnapshot", member));
        let claim = site.claim(&name, spec).await;
        let pod = Mounted::new(site, &claim).await;
        found.push(data::read(&pod.data()));
        pod.end(site).await;
    }
    for sum in written {
        assert!(found.contains(&sum), "a member is not what was written");
    }
    site.delete(&place).await;
    for member in members {
        site.until_gone(&at("VolumeSnapshot", &member)).await;
    }
}

/// The names of a group's snapshots.
async fn members(site: &Site, group: &Value) -> Vec<String> {
    let snapshots = site.objects.list("VolumeSnapshot", NAMESPACE).await;
    let owned = |s: &&Value| {
        let owners = s["metadata"]["ownerReferences"].as_array();
        let mut owners = owners.into_iter().flatten();
        owners.any(|owner| owner["uid"] == group["metadata"]["uid"])
    };
    let owned = snapshots.iter().filter(owned);
    owned.map(|s| string(&s["metadata"]["name"])).collect()
}

fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c["type"] == kind && c["status"] == "True")
}

/// A claim that is taken with its group, in a class of attributes.
fn labelled() -> Value {
    json!({
        "metadata": {"labels": {GROUPED: "yes"}},
        "spec": {"volumeAttributesClassName": "direct"},
    })
}

/// A claim made of a claim or a snapshot, which have grown.
fn from(kind: &str, name: &str) -> Value {
    let group = (kind == "VolumeSnapshot").then_some("snapshot.storage.k8s.io");
    json!({"spec": {
        "resources": {"requests": {"storage": "480Mi"}},
        "dataSource": {"apiGroup": group, "kind": kind, "name": name},
    }})
}
