//! A test's own namespace and its objects.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hostloop_report::hex;
use hostloop_test::cluster::{self, BUSYBOX};
use hostloop_test::deployed::DRIVER;
use hostloop_test::front::objects;
use hostloop_test::leaks::files_in;
use hostloop_test::loop_devices;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::objects::{handle_of, name, text};
use crate::site::Site;
use crate::world::{TOPOLOGY, World, check, is_ready};

/// A test's namespace. [`Space::end`] checks that nothing is left.
pub(crate) struct Space<'w> {
    /// The cluster.
    pub(crate) world: &'w World,
    /// The namespace's name.
    pub(crate) name: String,
    /// The handles of volumes and snapshots that were seen in this namespace.
    handles: RefCell<BTreeSet<String>>,
    /// The kind and name of each cluster-wide object that the test created.
    made: RefCell<Vec<(String, String)>>,
}

impl<'w> Space<'w> {
    /// Creates a namespace.
    pub(crate) fn new(world: &'w World, name: &str) -> Space<'w> {
        let name = format!("e2e-{name}");
        // The namespace may remain from an earlier run on the same cluster.
        world.remove("Namespace", "", &name);
        world.wait(world.objects.namespace(&name));
        Space {
            world,
            name,
            handles: RefCell::default(),
            made: RefCell::default(),
        }
    }

    /// Creates an object in this namespace.
    pub(crate) fn create(&self, mut object: Value) -> Value {
        object["metadata"]["namespace"] = json!(self.name);
        self.world.create(object)
    }

    /// Creates a cluster-wide object, which is deleted with this namespace.
    pub(crate) fn create_wide(&self, object: Value) -> Value {
        let (kind, named) = (text(&object, "/kind"), name(&object));
        self.world.remove(kind, "", named);
        let entry = (kind.to_owned(), named.to_owned());
        self.made.borrow_mut().push(entry);
        self.world.create(object)
    }

    /// Creates a storage class, `hostloop-ext4` with other fields, and returns its name.
    pub(crate) fn class(&self, suffix: &str, fields: Value) -> String {
        let named = format!("{}-{suffix}", self.name);
        self.create_wide(objects::class(&named, DRIVER, fields));
        named
    }

    /// Creates a claim of 512 MiB for one node, with this change.
    pub(crate) fn claim(&self, named: &str, class: &str, change: Value) -> Value {
        self.create(objects::claim(&self.name, named, class, "512Mi", change))
    }

    /// Creates a claim of a raw block volume.
    pub(crate) fn device(&self, named: &str, class: &str) {
        self.claim(named, class, json!({"spec": {"volumeMode": "Block"}}));
    }

    /// Reads a claim.
    pub(crate) fn claim_now(&self, named: &str) -> Value {
        self.world.get("PersistentVolumeClaim", &self.name, named)
    }

    /// Waits until a claim meets a condition, and returns it.
    pub(crate) fn until_claim(
        &self,
        what: &str,
        claim: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        self.world
            .until_is(what, ("PersistentVolumeClaim", &self.name, claim), is)
    }

    /// Waits until a claim is bound, and returns its volume.
    pub(crate) fn volume(&self, claim: &str) -> Value {
        let bound = self.until_claim("bound", claim, |c| text(c, "/status/phase") == "Bound");
        let volume = self
            .world
            .get("PersistentVolume", "", text(&bound, "/spec/volumeName"));
        self.remember(handle_of(&volume));
        volume
    }

    /// Makes [`Space::end`] look for leaks of this handle.
    pub(crate) fn remember(&self, handle: &str) {
        self.handles.borrow_mut().insert(handle.to_owned());
    }

    /// [`Space::claim`] with another size.
    pub(crate) fn sized(&self, named: &str, class: &str, size: &str) -> Value {
        self.create(objects::claim(&self.name, named, class, size, json!({})))
    }

    /// Creates an XFS claim of this size with a selected node, as the scheduler would select it.
    pub(crate) fn selected(&self, named: &str, node: &str, size: &str) {
        let selected =
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
        self.create(objects::claim(
            &self.name,
            named,
            "hostloop-xfs",
            size,
            selected,
        ));
    }

    /// Changes the requested size of a claim.
    pub(crate) fn grow(&self, claim: &str, to: &str) {
        self.patch_claim(claim, objects::sized(to));
    }

    /// Changes the VolumeAttributesClass of a claim, and waits until the volume has it.
    pub(crate) fn modify(&self, claim: &str, class: &str) {
        self.patch_claim(claim, objects::with_attributes(class));
        self.until_claim("of the other class", claim, |claim| {
            text(claim, "/status/currentVolumeAttributesClassName") == class
        });
    }

    /// [`Space::grow`], and waits until the claim has grown in its pod.
    pub(crate) fn grow_in(&self, pod: &str, claim: &str, to: &str) {
        self.grow(claim, to);
        let mut looks = 0;
        self.world.until("the claim's new size", || {
            looks += 1;
            if looks % 10 == 0 {
                // Kubelet checks a pod's volumes when the pod changes, otherwise every minute.
                let change = json!({"metadata": {"annotations": {"e2e/look": looks.to_string()}}});
                self.world.patch("Pod", &self.name, pod, change);
            }
            let claim = self.claim_now(claim);
            let has_grown = text(&claim, "/status/capacity/storage") == to
                && ["", to].contains(&text(&claim, "/status/allocatedResources/storage"));
            check(has_grown, || {
                format!("{}; {}", claim["status"], self.events())
            })
        });
    }

    /// Changes a claim by a merge patch.
    pub(crate) fn patch_claim(&self, claim: &str, patch: Value) {
        self.world
            .patch("PersistentVolumeClaim", &self.name, claim, patch);
    }

    /// Creates an idle pod that mounts claims at `/NAME` or has them as the device `/dev/NAME`.
    pub(crate) fn pod(&self, named: &str, claims: &[&str]) -> Value {
        self.pod_with(named, claims, json!({}))
    }

    /// [`Space::pod`], with other fields in its spec.
    pub(crate) fn pod_with(&self, named: &str, claims: &[&str], spec: Value) -> Value {
        let block = |claim: &str| text(&self.claim_now(claim), "/spec/volumeMode") == "Block";
        let (devices, files): (Vec<&str>, Vec<&str>) =
            claims.iter().copied().partition(|c| block(c));
        let idle = ["sleep", "1000000"];
        self.create(cluster::pod(
            &self.name,
            named,
            &idle,
            (&files, &devices),
            spec,
        ))
    }

    /// [`Space::pod`], ready.
    pub(crate) fn run(&self, named: &str, claims: &[&str]) -> Value {
        self.run_with(named, claims, json!({}))
    }

    /// [`Space::pod_with`], ready.
    pub(crate) fn run_with(&self, named: &str, claims: &[&str], spec: Value) -> Value {
        self.pod_with(named, claims, spec);
        self.ready(named)
    }

    /// Creates the claim `data` of a class, and runs a pod with it.
    pub(crate) fn run_data(&self, pod: &str, class: &str) {
        self.claim("data", class, json!({}));
        self.run(pod, &["data"]);
    }

    /// Runs a pod with one container that runs a script.
    pub(crate) fn run_script(&self, named: &str, claims: &[&str], script: &str) {
        let script = ["sh", "-c", script];
        self.create(cluster::pod(
            &self.name,
            named,
            &script,
            (claims, &[]),
            json!({}),
        ));
        self.ready(named);
    }

    /// Creates a StatefulSet with one pod like that of [`Space::pod_with`], and waits until that
    /// pod, `NAME-0`, is ready.
    pub(crate) fn stateful_set(&self, named: &str, claims: &[&str], spec: Value) -> Value {
        let idle = ["sleep", "1000000"];
        let pod = cluster::pod(&self.name, named, &idle, (claims, &[]), spec);
        let labels = json!({"app": named});
        self.create(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": named},
            "spec": {
                "replicas": 1, "serviceName": named, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod["spec"]}}}));
        let pod = format!("{named}-0");
        self.successor(&pod, &Value::Null);
        self.ready(&pod)
    }

    /// Waits until a StatefulSet has replaced this pod, and returns the new one.
    pub(crate) fn successor(&self, pod: &str, old: &Value) -> Value {
        let uid = |pod: &Value| text(pod, "/metadata/uid").to_owned();
        self.world.until(&format!("another pod {pod}"), || {
            let now = self.world.find("Pod", &self.name, pod);
            now.filter(|now| uid(now) != uid(old))
                .ok_or_else(|| self.events())
        })
    }

    /// Creates a pod with [`inline_volumes`].
    pub(crate) fn inline_pod(&self, named: &str, volumes: &[(&str, Value)]) {
        self.pod_with(named, &[], inline_volumes(volumes));
    }

    /// The size of the filesystem at a path in a pod, in MiB.
    pub(crate) fn mib(&self, pod: &str, path: &str) -> u64 {
        let printed = self.sh(pod, &format!("df -m {path} | awk 'END {{ print $2 }}'"));
        let mib = printed.parse();
        mib.unwrap_or_else(|_| panic!("df: {printed:?}"))
    }

    /// Reads a pod.
    pub(crate) fn pod_now(&self, named: &str) -> Value {
        self.world.get("Pod", &self.name, named)
    }

    pub(crate) fn node_of(&self, pod: &str) -> String {
        text(&self.pod_now(pod), "/spec/nodeName").to_owned()
    }

    /// Waits until a pod is ready.
    pub(crate) fn ready(&self, named: &str) -> Value {
        self.world
            .until_is("ready", ("Pod", &self.name, named), is_ready)
    }

    /// Runs a script in a pod and returns its output, without the last newline.
    pub(crate) fn sh(&self, pod: &str, script: &str) -> String {
        self.try_sh(pod, script)
            .unwrap_or_else(|why| panic!("{pod}: {script}: {why}"))
    }

    /// [`Space::sh`], but returns the error.
    pub(crate) fn try_sh(&self, pod: &str, script: &str) -> Result<String, String> {
        let command = ["sh", "-c", script];
        let printed = self.world.cluster().try_exec(&self.name, pod, &command)?;
        Ok(printed.trim_end().to_owned())
    }

    /// Deletes a pod and waits for its end.
    pub(crate) fn delete_pod(&self, named: &str) {
        self.world.remove("Pod", &self.name, named);
    }

    /// Deletes a pod's object by force, without confirmation that its processes have ended.
    pub(crate) fn force_away(&self, named: &str) {
        self.world.force_delete(&self.name, named);
        self.world.gone("Pod", &self.name, named);
    }

    /// Waits until kubelet has unmounted a volume: a pod's object may be gone earlier.
    pub(crate) fn off_node(&self, volume: &Value) {
        let handle = handle_of(volume);
        self.world
            .until("the volume off its node", || match attached(handle) {
                0 => Ok(()),
                n => Err(format!("{n} loop devices")),
            });
    }

    /// Deletes a claim and waits for its end.
    pub(crate) fn delete_claim(&self, named: &str) {
        self.world
            .remove("PersistentVolumeClaim", &self.name, named);
    }

    /// The events in this namespace.
    pub(crate) fn events(&self) -> String {
        self.world.events(&self.name)
    }

    /// Waits for an event about an object with this reason and message.
    pub(crate) fn event(&self, object: &str, reason: &str, message: &str) {
        self.world
            .until(&format!("{reason} of {object}: {message}"), || {
                let events = self.world.list("Event", &self.name);
                let found = events.iter().any(|e| {
                    text(e, "/involvedObject/name") == object
                        && text(e, "/reason") == reason
                        && text(e, "/message").contains(message)
                });
                check(found, || self.events())
            });
    }

    /// Deletes the namespace and everything in it, and waits until nothing is left anywhere.
    pub(crate) fn end(self) {
        let world = self.world;
        for claim in world.list("PersistentVolumeClaim", &self.name) {
            let bound = text(&claim, "/spec/volumeName");
            if bound.is_empty() {
                continue;
            }
            if let Some(volume) = world.find("PersistentVolume", "", bound) {
                self.remember(handle_of(&volume));
            }
        }
        world.remove("Namespace", "", &self.name);
        for (kind, named) in self.made.borrow().iter() {
            world.delete(kind, "", named);
        }
        world.until(&format!("nothing left of {}", self.name), || {
            let left = self.left();
            check(left.is_empty(), || left.join("\n  "))
        });
    }

    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (kind, reference) in [
            ("PersistentVolume", "/spec/claimRef/namespace"),
            ("VolumeSnapshotContent", "/spec/volumeSnapshotRef/namespace"),
            (
                "VolumeGroupSnapshotContent",
                "/spec/volumeGroupSnapshotRef/namespace",
            ),
        ] {
            let all = self.world.list(kind, "");
            let ours = all.iter().filter(|o| text(o, reference) == self.name);
            left.extend(ours.map(|o| format!("{kind} {o}")));
        }
        let sites = self.world.sites();
        let devices = loop_devices::all();
        for handle in self.handles.borrow().iter() {
            let staged = staged_as(handle);
            let mounts = sites.iter().flat_map(Site::mounts);
            let mounts = mounts.map(|m| m.at.display().to_string());
            left.extend(mounts.filter(|at| at.contains(handle) || at.contains(&staged)));
            let attached = devices.iter().filter(|l| l.backing.contains(handle));
            left.extend(attached.map(|l| format!("loop{} over {}", l.minor, l.backing)));
            let files = sites.iter().flat_map(|site| files_in(&site.pool()));
            let files = files.map(|f| f.display().to_string());
            left.extend(files.filter(|f| f.contains(handle)));
        }
        left
    }
}

impl Drop for Space<'_> {
    /// Objects of a failed test are deleted too, so that they do not fail the tests after it.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let delete = |kind: &str, named: &str| {
            let arguments = ["delete", kind, named, "--wait=false", "--ignore-not-found"];
            let _ = self.world.cluster().try_kubectl(&arguments);
        };
        delete("namespace", &self.name);
        for (kind, named) in self.made.borrow().iter() {
            delete(kind, named);
        }
    }
}

/// The `fsGroup` of [`ordinary_user`].
pub(crate) const FS_GROUP: &str = "2000";

/// The fields of a pod that does not run as root and has [`FS_GROUP`].
pub(crate) fn ordinary_user() -> Value {
    json!({"securityContext":
        {"runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}})
}

/// The fields of a pod that is an [`ordinary_user`] and has an inline volume with these attributes
/// for each filesystem, at `/FILESYSTEM`.
pub(crate) fn inline_volumes(volumes: &[(&str, Value)]) -> Value {
    let mount = |(fs, _): &(&str, Value)| json!({"name": fs, "mountPath": format!("/{fs}")});
    let volume = |(fs, attributes): &(&str, Value)| {
        json!({"name": fs, "csi": {
            "driver": DRIVER, "fsType": fs, "volumeAttributes": attributes}})
    };
    let mut spec = ordinary_user();
    spec["containers"] = json!([{
        "name": "main", "image": BUSYBOX, "command": ["sleep", "1000000"],
        "volumeMounts": volumes.iter().map(mount).collect::<Vec<_>>()}]);
    spec["volumes"] = volumes.iter().map(volume).collect();
    spec
}

/// The fields of a pod that the scheduler places on one node.
pub(crate) fn there(node: &str) -> Value {
    json!({"nodeSelector": {"kubernetes.io/hostname": node}})
}

/// The fields of a class that allows one node.
pub(crate) fn on_node(node: &str) -> Value {
    json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": TOPOLOGY, "values": [node]}]}]})
}

/// The number of a volume's loop devices, matched by name. They are attached in a container, and
/// after its end the path of their file no longer starts at the root.
pub(crate) fn attached(handle: &str) -> usize {
    let all = loop_devices::all();
    all.iter().filter(|l| l.backing.contains(handle)).count()
}

/// The folder in which a kubelet with this root stages a volume.
pub(crate) fn staging(kubelet_dir: &Path, handle: &str) -> PathBuf {
    let folder = kubelet_dir.join("plugins/kubernetes.io/csi").join(DRIVER);
    folder.join(staged_as(handle)).join("globalmount")
}

/// Kubelet's name for a volume that it stages.
pub(crate) fn staged_as(handle: &str) -> String {
    hex(&Sha256::digest(handle))
}
