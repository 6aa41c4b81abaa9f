//! The attach/detach controller: it makes a VolumeAttachment for each volume that a pod needs on
//! its node, tells kubelet by the node's status, and deletes it when the volume is no longer in
//! use there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hostloop_report::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::OUT_OF_SERVICE;
use super::view::{
    Model, Step, View, claims_of, has_ended, has_taint, is_deleting, is_ready, items, name,
    namespace, text,
};

const WHO: &str = "attachdetach-controller";
const ATTACHMENTS: &str = "volumeattachments";

/// The time after which a volume is detached from a node that isn't ready, even in use.
const FORCED_AFTER: Duration = Duration::from_secs(360);

/// The attach/detach controller.
#[derive(Default)]
pub(crate) struct AttachDetach {
    /// When each attachment was first found unwanted, by its name.
    unwanted: BTreeMap<String, Instant>,
}

/// A volume that pods need on a node.
struct NeededVolume<'a> {
    volume: &'a Value,
    node: &'a Value,
    pods: Vec<&'a Value>,
}

impl Model for AttachDetach {
    const KINDS: &[&str] = &[
        ATTACHMENTS,
        "csidrivers",
        "nodes",
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
    ];
    const PERIOD: Duration = Duration::from_secs(60);

    fn decide(&mut self, view: &View, now: Instant) -> Vec<Step> {
        let needed = needed(view);
        let mut steps = self.detach(view, &needed, now);
        let attach = needed
            .iter()
            .flat_map(|(attachment, needed)| attach(view, attachment, needed));
        steps.extend(attach);
        steps.extend(
            view.all("nodes")
                .filter_map(|node| report(view, node, &needed)),
        );
        steps
    }
}

/// The name of the attachment of a volume to a node.
pub(crate) fn attachment_name(volume: &Value, node: &str) -> String {
    let handle = text(volume, "/spec/csi/volumeHandle");
    attachment_name_of(text(volume, "/spec/csi/driver"), handle, node)
}

/// The name of the attachment of the volume with this handle to a node.
pub(crate) fn attachment_name_of(driver: &str, handle: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{driver}{node}"));
    format!("csi-{}", hex(&digest))
}

/// The name of a volume in the status of a node.
pub(crate) fn unique_name(volume: &Value) -> String {
    let handle = text(volume, "/spec/csi/volumeHandle");
    unique_name_of(text(volume, "/spec/csi/driver"), handle)
}

/// The name of the volume with this handle in the status of a node.
pub(crate) fn unique_name_of(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The volumes that pods need on their nodes, by the name of their attachment.
fn needed(view: &View) -> BTreeMap<String, NeededVolume<'_>> {
    let mut all = BTreeMap::new();
    for pod in view.all("pods").filter(|pod| !has_ended(pod)) {
        let Some(node) = view.get("nodes", "", text(pod, "/spec/nodeName")) else {
            continue;
        };
        for (claim, _) in claims_of(pod) {
            let claim = view.get("persistentvolumeclaims", namespace(pod), &claim);
            let bound = claim.filter(|claim| text(claim, "/status/phase") == "Bound");
            let volume = bound.and_then(|claim| {
                view.get("persistentvolumes", "", text(claim, "/spec/volumeName"))
            });
            let Some(volume) = volume.filter(|volume| is_attached(view, volume)) else {
                continue;
            };
            let key = attachment_name(volume, name(node));
            let needed = all.entry(key);
            let needed = needed.or_insert(NeededVolume {
                volume,
                node,
                pods: Vec::new(),
            });
            needed.pods.push(pod);
        }
    }
    all
}

/// True if the driver of a volume wants attachments.
fn is_attached(view: &View, volume: &Value) -> bool {
    let driver = text(volume, "/spec/csi/driver");
    !driver.is_empty()
        && view
            .get("csidrivers", "", driver)
            .is_none_or(|driver| driver["spec"]["attachRequired"] != false)
}

/// True if several nodes may have a volume at once.
fn is_shared(volume: &Value) -> bool {
    items(volume, "/spec/accessModes").any(|mode| {
        ["ReadOnlyMany", "ReadWriteMany"]
            .iter()
            .any(|shared| mode == shared)
    })
}

/// The next steps to attach a volume.
fn attach(view: &View, attachment: &str, needed: &NeededVolume) -> Vec<Step> {
    let volume_name = name(needed.volume);
    if let Some(attachment) = view.get(ATTACHMENTS, "", attachment) {
        let error = text(attachment, "/status/attachError/message");
        if error.is_empty() {
            return Vec::new();
        }
        let message = format!("AttachVolume.Attach failed for volume {volume_name:?} : {error}");
        return tell_pods(needed, &message);
    }
    let elsewhere = view
        .all(ATTACHMENTS)
        .any(|attachment| text(attachment, "/spec/source/persistentVolumeName") == volume_name);
    if elsewhere && !is_shared(needed.volume) {
        let message = format!(
            "Multi-Attach error for volume {volume_name:?} Volume is already exclusively attached \
             to one node and can't be attached to another"
        );
        return tell_pods(needed, &message);
    }
    let spec = json!({"attacher": text(needed.volume, "/spec/csi/driver"),
        "nodeName": name(needed.node), "source": {"persistentVolumeName": volume_name}});
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": attachment}, "spec": spec});
    vec![Step::create(ATTACHMENTS, object)]
}

/// Tells each pod that waits for a volume on its node why it is not attached.
fn tell_pods(needed: &NeededVolume, message: &str) -> Vec<Step> {
    let reason = ("Warning", "FailedAttachVolume");
    let pods = needed.pods.iter();
    pods.map(|pod| Step::event(WHO, pod, reason, message))
        .collect()
}

impl AttachDetach {
    /// Deletes the attachments that no pod needs and that the node doesn't use.
    fn detach(
        &mut self,
        view: &View,
        needed: &BTreeMap<String, NeededVolume>,
        now: Instant,
    ) -> Vec<Step> {
        let unwanted: Vec<&Value> = view
            .all(ATTACHMENTS)
            .filter(|one| !needed.contains_key(name(one)) && !is_deleting(one))
            .collect();
        self.unwanted
            .retain(|known, _| unwanted.iter().any(|one| name(one) == known));
        let mut steps = Vec::new();
        for attachment in unwanted {
            let since = *self
                .unwanted
                .entry(name(attachment).to_owned())
                .or_insert(now);
            let node = view.get("nodes", "", text(attachment, "/spec/nodeName"));
            let is_forced = node.is_none_or(|node| {
                is_out_of_service(node) || !is_ready(node) && now - since > FORCED_AFTER
            });
            // The node hears first that the volume is no longer safe to mount.
            let volume = text(attachment, "/spec/source/persistentVolumeName");
            let volume = view.get("persistentvolumes", "", volume);
            let is_reported = volume.zip(node).is_some_and(|(volume, node)| {
                items(node, "/status/volumesAttached")
                    .any(|one| one["name"] == *unique_name(volume))
            });
            if is_forced || !is_reported && !is_in_use(view, attachment) {
                steps.push(Step::delete(ATTACHMENTS, attachment));
            }
        }
        steps
    }
}

/// True if an administrator has marked a node as out of service.
pub(super) fn is_out_of_service(node: &Value) -> bool {
    has_taint(node, OUT_OF_SERVICE)
}

/// Writes to a node's status which volumes are attached to it and may be mounted.
fn report(view: &View, node: &Value, needed: &BTreeMap<String, NeededVolume>) -> Option<Step> {
    let attached: BTreeSet<String> = view
        .all(ATTACHMENTS)
        .filter(|one| {
            text(one, "/spec/nodeName") == name(node)
                && one["status"]["attached"] == true
                && !is_deleting(one)
                // A volume that will be detached is no longer safe to mount.
                && (needed.contains_key(name(one)) || is_in_use(view, one))
        })
        .filter_map(|one| {
            let volume = text(one, "/spec/source/persistentVolumeName");
            view.get("persistentvolumes", "", volume).map(unique_name)
        })
        .collect();
    let known: BTreeSet<String> = items(node, "/status/volumesAttached")
        .map(|one| text(one, "/name").to_owned())
        .collect();
    if attached == known {
        return None;
    }
    let list: Vec<Value> = attached
        .iter()
        .map(|one| json!({"name": one, "devicePath": ""}))
        .collect();
    Some(Step::status(
        "nodes",
        node,
        json!({"volumesAttached": list}),
    ))
}

/// True if the node of an attachment says that it uses the volume.
fn is_in_use(view: &View, attachment: &Value) -> bool {
    let node = view.get("nodes", "", text(attachment, "/spec/nodeName"));
    let volume = text(attachment, "/spec/source/persistentVolumeName");
    let volume = view.get("persistentvolumes", "", volume);
    node.zip(volume).is_some_and(|(node, volume)| {
        items(node, "/status/volumesInUse").any(|one| *one == unique_name(volume))
    })
}
