//! The attacked objects and their owners.

use hostloop_test::front::objects;
use serde_json::{Value, json};

use crate::installation::{Installation, driver, named};

/// The owner of an attacked object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The attacking node.
    Own,
    /// Another node.
    Other,
    /// No node yet: the object names none.
    Unplaced,
    /// Another driver, on the attacking node.
    Foreign,
}

impl Target {
    /// In the order of the table's columns.
    pub(crate) const ALL: [Target; 4] = [
        Target::Own,
        Target::Other,
        Target::Unplaced,
        Target::Foreign,
    ];

    fn driver(self) -> &'static str {
        match self {
            Target::Foreign => "other.csi.dev",
            _ => driver(),
        }
    }
}

/// Keeps this run's objects until the run ends.
pub(crate) const KEEP: &str = "hostloop.csi.dev/test";
const CLAIM_UID: &str = "00000000-0000-4000-8000-000000000000";

/// Names used in one run of the test.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// The run's namespace, and the prefix of its object names.
    pub(crate) run: String,
    /// The compromised node.
    pub(crate) own: String,
    /// Another node.
    pub(crate) other: String,
    /// A node that never shares the kernel of the others.
    pub(crate) third: String,
}

impl Names {
    /// The name of a target's object.
    pub(crate) fn of(&self, target: Target) -> String {
        format!("{}-{}", self.run, format!("{target:?}").to_lowercase())
    }

    /// The node of a target's object.
    fn node(&self, target: Target) -> &str {
        match target {
            Target::Other => &self.other,
            _ => &self.own,
        }
    }

    fn placed(&self, target: Target) -> Option<&str> {
        (target != Target::Unplaced).then(|| self.node(target))
    }

    /// The target's object of this resource, as the cluster or an administrator creates it.
    pub(crate) fn object(&self, resource: &str, target: Target) -> Option<Value> {
        let mut object = match resource {
            "persistentvolumes" => self.volume(target),
            "persistentvolumeclaims" => self.claim(target),
            "volumeattachments" => self.attachment(target)?,
            "csistoragecapacities" => self.capacity(target)?,
            "events" => self.event(target)?,
            "volumesnapshots" => self.snapshot(),
            "volumesnapshotcontents" => self.content(
                target,
                ["snapshot", "Snapshot"],
                json!({"volumeHandle": "none"}),
            ),
            "volumegroupsnapshotcontents" => self.content(
                target,
                ["groupsnapshot", "GroupSnapshot"],
                json!({"volumeHandles": ["vol-p1-1"]}),
            ),
            "leases" => self.lease(),
            _ => return None,
        };
        object["metadata"]["name"] = json!(self.of(target));
        Some(object)
    }

    /// The status of a target's object, where it has one.
    pub(crate) fn status(&self, resource: &str) -> Option<Value> {
        let handle = match resource {
            "volumesnapshotcontents" => "snapshotHandle",
            "volumegroupsnapshotcontents" => "volumeGroupSnapshotHandle",
            _ => return None,
        };
        Some(json!({"status": {handle: "snap-p1-1"}}))
    }

    /// Which nodes share a kernel, as an administrator says.
    pub(crate) fn kernels(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": Installation::of_run().namespace, "name": "hostloop-kernels"},
            "data": {"a": format!("{}\n\n{} ", self.other, self.own), "b": self.third},
        })
    }

    /// The class of another driver.
    pub(crate) fn foreign_class(&self) -> Value {
        let name = format!("{}-foreign", self.run);
        objects::class(&name, Target::Foreign.driver(), json!({}))
    }

    /// An object as a node creates it, if nodes create this resource.
    pub(crate) fn new_object(&self, resource: &str, target: Target) -> Option<Value> {
        let mut object = self.object(resource, target)?;
        let metadata = &mut object["metadata"];
        metadata["finalizers"] = Value::Null;
        metadata["name"] = json!(format!("{}-new", self.of(target)));
        if resource == "persistentvolumes" {
            metadata["name"] = json!(format!("hostloop-{CLAIM_UID}"));
            metadata["finalizers"] = json!(["external-provisioner.volume.kubernetes.io/finalizer"]);
            metadata["labels"] = match self.placed(target) {
                Some(node) => json!({"hostloop.csi.dev/node": node}),
                None => Value::Null,
            };
        }
        Some(object)
    }

    fn volume(&self, target: Target) -> Value {
        let key = Installation::of_run().topology_key;
        let affinity = self.placed(target).map(|node| {
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": key, "operator": "In", "values": [node]}]}]}})
        });
        let provisioned = json!({
            "metadata": {
                "finalizers": [KEEP, "external-provisioner.volume.kubernetes.io/finalizer"],
                "annotations": {"pv.kubernetes.io/provisioned-by": target.driver()},
            },
            "spec": {
                "storageClassName": "attack", "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": self.run, "name": "none", "uid": CLAIM_UID},
                "nodeAffinity": affinity,
            },
        });
        objects::volume("", target.driver(), &self.of(target), provisioned)
    }

    fn claim(&self, target: Target) -> Value {
        let mut annotations = json!({"volume.kubernetes.io/storage-provisioner": target.driver()});
        if let Some(node) = self.placed(target) {
            annotations["volume.kubernetes.io/selected-node"] = json!(node);
        }
        let metadata = json!({"metadata": {"annotations": annotations, "finalizers": [KEEP]}});
        objects::claim(&self.run, "", "attack-none", "1Gi", metadata)
    }

    fn attachment(&self, target: Target) -> Option<Value> {
        let attachment = objects::attachment("", target.driver(), self.placed(target)?, "none");
        let attacher = named("external-attacher/hostloop-csi-dev");
        let kept = json!({"finalizers": [KEEP, attacher]});
        Some(objects::with(attachment, json!({"metadata": kept})))
    }

    fn capacity(&self, target: Target) -> Option<Value> {
        let node = self.placed(target)?;
        let installed = Installation::of_run();
        Some(objects::capacity(
            installed.namespace,
            target.driver(),
            "attack",
            installed.topology_key,
            node,
        ))
    }

    fn event(&self, target: Target) -> Option<Value> {
        let node = self.placed(target)?;
        Some(json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"namespace": self.run},
            "involvedObject": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": self.run, "name": self.of(Target::Own)},
            "reason": "ProvisioningFailed", "message": "no room", "type": "Warning", "count": 1,
            "source": {"component": target.driver(), "host": node},
            "reportingComponent": target.driver(), "reportingInstance": node,
        }))
    }

    /// A snapshot names neither driver nor node, so all targets share one form.
    fn snapshot(&self) -> Value {
        let change = json!({
            "metadata": {"finalizers": [KEEP]}, "spec": {"volumeSnapshotClassName": null},
        });
        objects::with(objects::snapshot(&self.run, "", "", "none"), change)
    }

    fn lease(&self) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": Installation::of_run().namespace},
            "spec": {"holderIdentity": self.own},
        })
    }

    /// A content of this API group and kind.
    fn content(&self, target: Target, [group, kind]: [&str; 2], source: Value) -> Value {
        let labels = match self.placed(target) {
            Some(node) => json!({"snapshot.storage.kubernetes.io/managed-by": node}),
            None => json!({}),
        };
        let bound = format!("{group}.storage.kubernetes.io/volume{group}content-bound-protection");
        json!({
            "apiVersion": format!("{group}.storage.k8s.io/v1"),
            "kind": format!("Volume{kind}Content"),
            "metadata": {"labels": labels, "finalizers": [KEEP, bound]},
            "spec": {
                "deletionPolicy": "Retain", "driver": target.driver(), "source": source,
                format!("volume{kind}Ref"): {"name": "none", "namespace": self.run},
            },
        })
    }
}
