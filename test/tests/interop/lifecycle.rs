//! One life of several volumes. Each step waits for what a user would see, and checks what the
//! driver did.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::wait_for;
use hostloop_test::data;
use hostloop_test::deployed::DRIVER;
use hostloop_test::front::fields::{
    has_condition, has_finalizer, is_ready_to_use, list, name, text,
};
use hostloop_test::front::objects::{self, Place};
use hostloop_test::loop_devices;
use serde_json::{Value, json};

use crate::kubelet::Mounted;
use crate::site::{CLASS, NAMESPACE, Site, at};

/// Claims with this label are taken together.
const GROUPED: &str = "grouped";

/// The size of the first claim after its expansion.
const GROWN: &str = "480Mi";

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
    let restored = site
        .claim("restored", grown(objects::restored("cut")))
        .await;
    let clone = grown(objects::cloned("data"));
    let cloned = site.claim("cloned", objects::with(clone, labelled())).await;
    let of_snapshot = Mounted::new(site, &restored).await;
    assert_eq!(data::read(&of_snapshot.data()), first);
    let of_claim = Mounted::new(site, &cloned).await;
    assert_eq!(data::read(&of_claim.data()), second);

    grouped(site, &[&pod, &of_claim]).await;

    // If a claim is deleted while its volume is attached, the volume stays until it is detached.
    let volume = Place::of_object(&site.bound(&restored).await);
    of_snapshot.unmount(site).await;
    site.delete(&restored).await;
    site.until(&volume, "released", |v| v["status"]["phase"] == "Released")
        .await;
    site.until_event(&volume, "VolumeDelete").await;
    let volumes = site.csi.volume_ids().await;
    let there = volumes.contains(&of_snapshot.handle);
    assert!(there, "a volume in use was deleted");
    of_snapshot.detach(site).await;
    site.until_gone(&volume).await;

    // A snapshot outlives its source volume.
    for (claim, pod) in [(&claim, pod), (&cloned, of_claim)] {
        let volume = Place::of_object(&site.bound(claim).await);
        pod.end(site).await;
        site.until_gone(&volume).await;
    }
    let late = site.claim("late", grown(objects::restored("cut"))).await;
    let pod = Mounted::new(site, &late).await;
    assert_eq!(data::read(&pod.data()), first);
    pod.end(site).await;
    site.delete(&snapshot).await;
}

/// Checks the PersistentVolume that the provisioner wrote.
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
    let finalizer = "external-provisioner.volume.kubernetes.io/finalizer";
    assert!(has_finalizer(volume, finalizer), "{volume}");
}

/// The claim asks for more while its volume is in use.
async fn expanded(site: &Site, claim: &Place, pod: &Mounted) {
    let before = pod.bytes();
    site.objects.merge(claim, objects::sized(GROWN)).await;
    let pending = |c: &Value| {
        c["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizePending"
            && has_condition(c, "FileSystemResizePending")
    };
    site.until(claim, "waiting for its node", pending).await;
    pod.grow(site).await;
    let after = pod.bytes();
    assert!(
        after >= before + (100 << 20),
        "{before} bytes, then {after}"
    );
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
        let mut of_volumes = loop_devices::beneath(site.scratch.path()).into_iter();
        let found = of_volumes.find(|l| l.backing.contains("/volumes/"));
        found.expect("the volume has a loop device").direct_io
    };
    assert!(direct(), "the class asks for direct I/O");
    site.objects
        .merge(claim, objects::with_attributes("buffered"))
        .await;
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
    site.objects
        .create(objects::snapshot(NAMESPACE, name, CLASS, claim))
        .await;
    let place = at("VolumeSnapshot", name);
    let handle = ready(site, &place).await;
    assert!(site.csi.snapshot_ids().await.contains(&handle), "{handle}");
    place
}

/// Waits until a snapshot can be restored, and returns its ID.
async fn ready(site: &Site, snapshot: &Place) -> String {
    let ready = |s: &Value| is_ready_to_use(s) && s["status"]["restoreSize"].is_string();
    let made = site.until(snapshot, "ready", ready).await;
    let content = text(&made["status"]["boundVolumeSnapshotContentName"]);
    let content = at("VolumeSnapshotContent", content);
    let content = site.objects.get(&content).await;
    let content = content.expect("the snapshot's content");
    text(&content["status"]["snapshotHandle"]).to_owned()
}

/// All claims with the label are taken at one moment, and each of the snapshots can be restored.
async fn grouped(site: &Site, pods: &[&Mounted]) {
    let written = (10..).zip(pods);
    let written: Vec<_> = written
        .map(|(seed, pod)| data::write(&pod.data(), seed))
        .collect();
    let group = objects::group_snapshot(NAMESPACE, "both", CLASS, (GROUPED, "yes"));
    let group = site.objects.create(group).await;
    let place = Place::of_object(&group);
    site.until(&place, "ready", is_ready_to_use).await;
    let members = members(site, &group, pods.len()).await;
    let mut found = Vec::new();
    for (n, member) in members.iter().enumerate() {
        ready(site, &at("VolumeSnapshot", member)).await;
        let claim = site
            .claim(&format!("member-{n}"), grown(objects::restored(member)))
            .await;
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

/// The names of a group's snapshots, once there are this many.
async fn members(site: &Site, group: &Value, count: usize) -> Vec<String> {
    wait_for("the members of the group", PATIENCE, async || {
        let snapshots = site.objects.list("VolumeSnapshot", NAMESPACE).await;
        let owned = |s: &&Value| {
            let mut owners = list(&s["metadata"]["ownerReferences"]);
            owners.any(|owner| owner["uid"] == group["metadata"]["uid"])
        };
        let owned = snapshots.iter().filter(owned);
        let names: Vec<String> = owned.map(|s| name(s).to_owned()).collect();
        if names.len() == count {
            Ok(names)
        } else {
            Err(format!("{names:?}"))
        }
    })
    .await
}

/// A claim that is taken with its group, in a class of attributes.
fn labelled() -> Value {
    let label = json!({"metadata": {"labels": {GROUPED: "yes"}}});
    objects::with(objects::with_attributes("direct"), label)
}

/// The change of a claim with a source that has grown.
fn grown(change: Value) -> Value {
    objects::with(change, objects::sized(GROWN))
}
