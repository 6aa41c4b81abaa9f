//! A volume of a claim, its snapshots, and devices with their content.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{pod, wait_for};
use hostloop_test::front::objects::{restored, snapshot, with};
use hostloop_test::loop_devices;
use hostloop_test::machine::{self, text};
use serde_json::{Value, json};

use crate::site::Site;

/// The size of all volumes.
pub(crate) const SIZE: &str = "64Mi";
/// The same in bytes.
pub(crate) const BYTES: u64 = 64 << 20;

/// A class of snapshots that keep their images for a delta when they are deleted.
pub(crate) const KEPT: &str = "
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: kept}
driver: hostloop.csi.dev
deletionPolicy: Delete
parameters: {keepDeletedBases: '1'}
";

/// A claim, with a pod that uses it.
pub(crate) struct Volume<'s> {
    pub(crate) site: &'s Site,
    /// The name of the claim and of the pod.
    name: &'static str,
    /// The node with the volume.
    node: String,
}

/// A claim of this size, with this change.
fn claim(name: &str, mode: &str, change: Value) -> Value {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "storageClassName": "hostloop-ext4", "volumeMode": mode,
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": SIZE}},
        },
    });
    with(claim, change)
}

/// The change of a pod that runs on this node.
fn on(node: &str) -> Value {
    let this = json!({"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": [node]},
    ]});
    json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [this]},
    }}})
}

/// A pod that waits for commands, with these claims.
fn idle(name: &str, claims: (&[&str], &[&str]), node: &str) -> Value {
    pod("default", name, &["sleep", "1000000"], claims, on(node))
}

/// For claims of one mode: those that a pod mounts, and those that it has as devices.
fn used_as<'n>(mode: &str, names: &'n [&'n str]) -> (&'n [&'n str], &'n [&'n str]) {
    if mode == "Block" {
        (&[], names)
    } else {
        (names, &[])
    }
}

fn all(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

impl<'s> Volume<'s> {
    /// Makes a volume with this mode on a node, counted from 1.
    pub(crate) fn make(site: &'s Site, name: &'static str, mode: &str, node: u32) -> Volume<'s> {
        let node = site.cluster.node(node);
        let names = [name];
        let user = idle(name, used_as(mode, &names), &node);
        let objects = [claim(name, mode, json!({})), user];
        site.cluster.apply(&all(&objects));
        site.cluster.pod_ready("default", name);
        Volume { site, name, node }
    }

    /// The volume of a claim that is there, with a pod that uses it.
    pub(crate) fn of_claim(site: &'s Site, name: &'static str, mode: &str) -> Volume<'s> {
        let cluster = &site.cluster;
        let names = [name];
        let claims = used_as(mode, &names);
        let user = pod("default", name, &["sleep", "1000000"], claims, json!({}));
        cluster.apply(&user.to_string());
        cluster.pod_ready("default", name);
        let node = cluster.kubectl(&["get", "pod", name, "-o", "jsonpath={.spec.nodeName}"]);
        Volume { site, name, node }
    }

    /// The name of the claim.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Runs a shell's command in the pod, and returns what it prints.
    pub(crate) fn sh(&self, command: &str) -> String {
        self.site
            .cluster
            .exec("default", self.name, &["sh", "-c", command])
    }

    /// Takes a snapshot of this class and waits until it is ready. Returns its handle.
    pub(crate) async fn snapshot(&self, name: &str, class: &str) -> String {
        let cluster = &self.site.cluster;
        cluster.apply(&snapshot("default", name, class, self.name).to_string());
        let is_ready = [
            "get",
            "volumesnapshot",
            name,
            "-o",
            "jsonpath={.status.readyToUse}",
        ];
        wait_for("the snapshot", PATIENCE, async || {
            let found = cluster.try_kubectl(&is_ready)?;
            if found == "true" {
                Ok(())
            } else {
                cluster
                    .try_kubectl(&["describe", "volumesnapshot", name])
                    .and_then(Err)
            }
        })
        .await;
        let content = content_of(self.site, name);
        let handle = "jsonpath={.status.snapshotHandle}";
        cluster.kubectl(&["get", "volumesnapshotcontent", &content, "-o", handle])
    }

    /// Devices with the content of a snapshot, and with that of an earlier one or with nothing.
    pub(crate) fn devices(&self, name: &str, of: &str, earlier: Option<&str>) -> Devices<'s> {
        let cluster = &self.site.cluster;
        // An administrator allows to read a filesystem as a device.
        for snapshot in [Some(of), earlier].into_iter().flatten() {
            let content = content_of(self.site, snapshot);
            let allow = "snapshot.storage.kubernetes.io/allow-volume-mode-change=true";
            cluster.kubectl(&[
                "annotate",
                "--overwrite",
                "volumesnapshotcontent",
                &content,
                allow,
            ]);
        }
        let (source, target) = (format!("{name}-source"), format!("{name}-target"));
        let objects = [
            claim(&source, "Block", restored(of)),
            claim(&target, "Block", earlier.map_or(json!({}), restored)),
            idle(name, (&[], &[&source, &target]), &self.node),
        ];
        cluster.apply(&all(&objects));
        cluster.pod_ready("default", name);
        Devices {
            site: self.site,
            source: device_of(self.site, &source),
            target: device_of(self.site, &target),
            objects: all(&objects),
        }
    }

    /// Deletes claim and pod.
    pub(crate) fn delete(self) {
        let objects = [
            claim(self.name, "Block", json!({})),
            idle(self.name, (&[], &[]), &self.node),
        ];
        self.site.cluster.delete(&all(&objects));
    }
}

/// The name of the content of a snapshot.
pub(crate) fn content_of(site: &Site, snapshot: &str) -> String {
    let bound = "jsonpath={.status.boundVolumeSnapshotContentName}";
    site.cluster
        .kubectl(&["get", "volumesnapshot", snapshot, "-o", bound])
}

/// A device node of this test for the volume of a claim. The machine's /dev may lack it.
fn device_of(site: &Site, claim: &str) -> PathBuf {
    let handle = site.cluster.handle("default", claim);
    let attached = loop_devices::all();
    let found = attached
        .iter()
        .find(|device| device.backing.contains(&handle));
    let found = found.unwrap_or_else(|| panic!("{claim}, {handle}: {attached:?}"));
    let numbers = format!("/sys/block/loop{}/dev", found.minor);
    let numbers = std::fs::read_to_string(&numbers).unwrap_or_else(|e| panic!("{numbers}: {e}"));
    let (major, minor) = numbers
        .trim()
        .split_once(':')
        .expect("a device has two numbers");
    let node = site.dir().join(claim);
    machine::run("mknod", &[text(&node), "b", major, minor]);
    node
}

/// The devices of a verification.
pub(crate) struct Devices<'s> {
    site: &'s Site,
    source: PathBuf,
    target: PathBuf,
    objects: String,
}

impl Devices<'_> {
    /// Copies what these arguments list from source to target, and compares all bytes.
    pub(crate) fn verify(&self, arguments: &[&str]) -> Result<String, String> {
        let devices = ["-src", text(&self.source), "-tgt", text(&self.target)];
        self.site.tool(&[arguments, &devices].concat())
    }

    /// Changes bytes of the source.
    pub(crate) fn change_source(&self, offset: u64) {
        let device = File::options().write(true).open(&self.source);
        let device = device.expect("the device can be opened");
        let changed = device.write_all_at(b"changed", offset);
        changed
            .and_then(|()| device.sync_all())
            .expect("the device can be written");
    }

    /// Deletes claims and pod.
    pub(crate) fn delete(self) {
        self.site.cluster.delete(&self.objects);
    }
}
