//! Reads claims for the resizer, and builds patches of their status.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::api::{message, pv, pvc, quantity};

/// The name of the resource that is resized.
pub(super) const STORAGE: &str = "storage";

/// The controller is expanding the volume, or was when it failed.
pub(super) const RESIZING: &str = "Resizing";
/// Kubelet must grow the filesystem.
pub(super) const FILE_SYSTEM_RESIZE_PENDING: &str = "FileSystemResizePending";
/// The controller failed with a final error.
pub(super) const CONTROLLER_RESIZE_ERROR: &str = "ControllerResizeError";
/// Kubelet failed with a final error.
pub(super) const NODE_RESIZE_ERROR: &str = "NodeResizeError";
/// All condition types about resizing.
pub(super) const RESIZE_CONDITIONS: [&str; 4] = [
    RESIZING,
    FILE_SYSTEM_RESIZE_PENDING,
    CONTROLLER_RESIZE_ERROR,
    NODE_RESIZE_ERROR,
];

/// The current size, as users see it.
pub(super) fn capacity(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.status.as_ref()?.capacity.as_ref()?.get(STORAGE)
}

/// The target size of an expansion that was begun.
pub(super) fn allocated(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim
        .status
        .as_ref()?
        .allocated_resources
        .as_ref()?
        .get(STORAGE)
}

/// The progress of that expansion; "" if none is under way.
pub(super) fn resize_status(claim: &PersistentVolumeClaim) -> &str {
    let status = claim.status.as_ref();
    let statuses = status.and_then(|status| status.allocated_resource_statuses.as_ref());
    statuses
        .and_then(|statuses| statuses.get(STORAGE))
        .map_or("", String::as_str)
}

/// True if a condition of this type holds.
pub(super) fn holds(claim: &PersistentVolumeClaim, kind: &str) -> bool {
    known(claim, kind).is_some_and(|condition| condition.status == "True")
}

/// A condition of this type, true or not.
fn known<'a>(
    claim: &'a PersistentVolumeClaim,
    kind: &str,
) -> Option<&'a PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// True if the claim is bound to a volume.
pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    pvc::is_bound(claim) && pvc::volume_name(claim).is_some()
}

/// True if the PV references this claim (same namespace and UID).
pub(super) fn is_bound_to(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    pv::claim(volume).is_some_and(|reference| {
        reference.namespace == claim.namespace() && reference.uid == claim.uid()
    })
}

/// The size of a PV.
pub(super) fn volume_capacity(volume: &PersistentVolume) -> Option<&Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get(STORAGE)
}

/// A size in bytes. A missing quantity is 0, and an unreadable one is `i64::MAX`.
pub(super) fn size(quantity: Option<&Quantity>) -> i64 {
    quantity.map_or(0, |quantity| {
        quantity::bytes(&quantity.0).unwrap_or(i64::MAX)
    })
}

/// A patch of a claim's status. It omits fields that already have their value. If nothing would
/// change, there is no patch.
pub(super) struct StatusPatch<'a> {
    claim: &'a PersistentVolumeClaim,
    annotations: Map<String, Value>,
    status: Map<String, Value>,
    conditions: Vec<Value>,
    now: Timestamp,
}

impl<'a> StatusPatch<'a> {
    /// Creates an empty patch.
    pub(super) fn of(claim: &'a PersistentVolumeClaim) -> Self {
        StatusPatch {
            claim,
            annotations: Map::new(),
            status: Map::new(),
            conditions: Vec::new(),
            now: Timestamp::now(),
        }
    }

    /// Sets a condition to true, with this reason and message.
    pub(super) fn hold(
        &mut self,
        kind: &str,
        reason: Option<&str>,
        message: Option<&str>,
    ) -> &mut Self {
        let message = message.map(|message| message::cut(message, message::MAX_STATUS));
        let message = message.as_deref();
        let known = known(self.claim, kind);
        if let Some(known) = known
            && known.status == "True"
            && known.reason.as_deref() == reason
            && known.message.as_deref() == message
        {
            return self;
        }
        let same = known.is_some_and(|known| known.status == "True");
        let since = known
            .filter(|known| same && known.reason.as_deref() == reason)
            .and_then(|known| known.last_transition_time.clone())
            .unwrap_or(Time(self.now));
        let mut condition = json!({
            "type": kind, "status": "True",
            "lastProbeTime": Time(self.now), "lastTransitionTime": since,
        });
        // A strategic merge keeps missing fields, so obsolete ones are set to null.
        if reason.is_some() || known.is_some_and(|known| known.reason.is_some()) {
            condition["reason"] = json!(reason);
        }
        if message.is_some() || known.is_some_and(|known| known.message.is_some()) {
            condition["message"] = json!(message);
        }
        self.conditions.push(condition);
        self
    }

    /// Removes conditions.
    pub(super) fn drop(&mut self, kinds: &[&str]) -> &mut Self {
        for kind in kinds {
            if known(self.claim, kind).is_some() {
                self.conditions
                    .push(json!({"$patch": "delete", "type": kind}));
            }
        }
        self
    }

    /// Sets the progress of the expansion.
    pub(super) fn resize_status(&mut self, status: Option<&str>) -> &mut Self {
        if resize_status(self.claim) != status.unwrap_or_default() {
            self.set("allocatedResourceStatuses", json!({ STORAGE: status }));
        }
        self
    }

    /// Sets the target size of the expansion.
    pub(super) fn allocated(&mut self, quantity: &Quantity) -> &mut Self {
        if allocated(self.claim) != Some(quantity) {
            self.set("allocatedResources", json!({ STORAGE: quantity }));
        }
        self
    }

    /// Sets the current size.
    pub(super) fn capacity(&mut self, quantity: &Quantity) -> &mut Self {
        if capacity(self.claim) != Some(quantity) {
            self.set("capacity", json!({ STORAGE: quantity }));
        }
        self
    }

    /// Sets or removes an annotation.
    pub(super) fn annotation(&mut self, key: &str, value: Option<&str>) -> &mut Self {
        if self.claim.annotations().get(key).map(String::as_str) != value {
            self.annotations.insert(key.to_owned(), json!(value));
        }
        self
    }

    /// Sets any field of the status.
    pub(super) fn set(&mut self, field: &str, value: Value) -> &mut Self {
        self.status.insert(field.to_owned(), value);
        self
    }

    /// Returns the patch, bound to the claim's UID. With `versioned`, it is also bound to the
    /// version that was read.
    pub(super) fn finish(&mut self, versioned: bool) -> Option<Value> {
        if !self.conditions.is_empty() {
            let conditions = std::mem::take(&mut self.conditions);
            self.set("conditions", json!(conditions));
        }
        if self.status.is_empty() && self.annotations.is_empty() {
            return None;
        }
        let mut metadata = json!({"uid": self.claim.uid()});
        if versioned {
            metadata["resourceVersion"] = json!(self.claim.resource_version());
        }
        if !self.annotations.is_empty() {
            metadata["annotations"] = json!(self.annotations);
        }
        Some(json!({"metadata": metadata, "status": self.status}))
    }
}

#[cfg(test)]
mod tests;
