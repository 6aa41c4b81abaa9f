//! Decides which VolumeAttributesClass a volume is modified to, and how the claim records it.
//!
//! The class in the claim's spec is the request. The current class in its status is what the volume
//! has, and the target class in its status is the running attempt. An attempt with an unknown
//! result is repeated with the same target until the result is known, because the driver may still
//! be working.

use hostloop_proto::calls::code_name;
use k8s_openapi::api::core::v1::{
    ModifyVolumeStatus, PersistentVolume, PersistentVolumeClaim, SecretReference,
};
use kube::ResourceExt;
use serde_json::{Value, json};
use tonic::Code;

use crate::api::constants::{MODIFY_SECRET_NAME, MODIFY_SECRET_NAMESPACE};
use crate::api::{pv, pvc};
use crate::csi::{CallKind, ErrorClass, Failure, class};
use crate::resizer::claim::{StatusPatch, holds, is_bound};

/// The modification is running, or will be tried again.
const IN_PROGRESS: &str = "InProgress";
/// The class does not exist yet.
const PENDING: &str = "Pending";
/// The driver can never do this modification.
const INFEASIBLE: &str = "Infeasible";

/// A modification is running.
const MODIFYING: &str = "ModifyingVolume";
/// The last attempt failed.
const MODIFY_ERROR: &str = "ModifyVolumeError";

/// The next step for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// The user withdrew the request: record that.
    Cancel,
    /// Repeat the last attempt, with this class.
    Continue(String),
    /// Start an attempt with this class.
    Begin(String),
}

/// Decides the next step for a claim. `uncertain`: it is unknown whether the last attempt is
/// running.
pub(super) fn decide(claim: &PersistentVolumeClaim, uncertain: bool) -> Step {
    if !is_bound(claim) {
        return Step::Nothing;
    }
    let requested_class = requested_class(claim);
    let status = status(claim);
    if status.is_none() && requested_class == current(claim) {
        return Step::Nothing;
    }
    let in_progress = status.filter(|status| status.status == IN_PROGRESS);
    let target = in_progress.and_then(|status| status.target_volume_attributes_class_name.clone());
    match (requested_class, target) {
        ("", None) if holds(claim, MODIFYING) => Step::Cancel,
        ("", None) => Step::Nothing,
        ("", Some(target)) => Step::Continue(target),
        (_, Some(target)) if uncertain => Step::Continue(target),
        (requested_class, _) => Step::Begin(requested_class.to_owned()),
    }
}

/// True if the request equals the last target, so that an infeasible one is still infeasible.
pub(super) fn is_same_try(claim: &PersistentVolumeClaim) -> bool {
    let target = status(claim).and_then(|s| s.target_volume_attributes_class_name.as_deref());
    !requested_class(claim).is_empty() && target == Some(requested_class(claim))
}

/// True if the claim records an attempt without a result.
pub(super) fn is_in_progress(claim: &PersistentVolumeClaim) -> bool {
    status(claim).is_some_and(|status| status.status == IN_PROGRESS)
}

/// True if a change of a claim needs work. Of the resizer's own writes, only completion does,
/// because the user may have changed the request meanwhile.
pub(super) fn asks(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    requested_class(old) != requested_class(new)
        || status(old).is_some() && status(new).is_none()
        || !is_bound(old) && is_bound(new)
}

/// The class that the claim requests; "" for none.
pub(super) fn requested_class(claim: &PersistentVolumeClaim) -> &str {
    pvc::attributes_class(claim).unwrap_or_default()
}

fn current(claim: &PersistentVolumeClaim) -> &str {
    let status = claim.status.as_ref();
    let name = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    name.unwrap_or_default()
}

fn status(claim: &PersistentVolumeClaim) -> Option<&ModifyVolumeStatus> {
    claim.status.as_ref()?.modify_volume_status.as_ref()
}

/// The secret for modifying a volume.
pub(super) fn secret_of(volume: &PersistentVolume) -> Option<SecretReference> {
    annotated_secret(volume).or_else(|| pv::csi(volume)?.controller_expand_secret_ref.clone())
}

/// The secret for modifying a volume that its annotations name.
fn annotated_secret(volume: &PersistentVolume) -> Option<SecretReference> {
    let name = volume.annotations().get(MODIFY_SECRET_NAME)?;
    let namespace = volume.annotations().get(MODIFY_SECRET_NAMESPACE)?;
    let is_named = !name.is_empty() && !namespace.is_empty();
    is_named.then(|| SecretReference {
        name: Some(name.clone()),
        namespace: Some(namespace.clone()),
    })
}

/// The patch for a class that does not exist: it only records that.
pub(super) fn pending_patch(claim: &PersistentVolumeClaim) -> Option<Value> {
    let mut patch = StatusPatch::of(claim);
    if status(claim).is_none_or(|status| status.status != PENDING) {
        patch.set("modifyVolumeStatus", json!({"status": PENDING}));
    }
    patch.finish(true)
}

/// The patch before the first call with this class.
pub(super) fn begin_patch(claim: &PersistentVolumeClaim, target: &str) -> Option<Value> {
    let mut patch = StatusPatch::of(claim);
    set_status(&mut patch, claim, IN_PROGRESS, target);
    let message = format!("Modifying the volume to {target:?} is in progress.");
    patch.hold(MODIFYING, None, Some(&message));
    patch.finish(true)
}

/// The patch after a failed call.
pub(super) fn failure_patch(
    claim: &PersistentVolumeClaim,
    target: &str,
    failure: &Failure,
) -> Option<Value> {
    let class = meaning(failure);
    let mut patch = StatusPatch::of(claim);
    let status = match class {
        ErrorClass::Infeasible => INFEASIBLE,
        _ => IN_PROGRESS,
    };
    set_status(&mut patch, claim, status, target);
    let message = match class {
        ErrorClass::InBackground => {
            format!("Modifying the volume to {target:?} is still in progress.")
        }
        _ => format!("Modifying the volume to {target:?} failed. It is tried again."),
    };
    patch.hold(MODIFYING, None, Some(&message));
    let code = code_name(failure.code());
    patch.hold(MODIFY_ERROR, Some(code), Some(failure.status.message()));
    patch.finish(true)
}

/// Marks a target as infeasible because this driver can never reach it; `message` says why.
pub(super) fn infeasible_patch(
    claim: &PersistentVolumeClaim,
    target: &str,
    message: &str,
) -> Option<Value> {
    let mut patch = StatusPatch::of(claim);
    set_status(&mut patch, claim, INFEASIBLE, target);
    let modifying = format!("The volume cannot be modified to {target:?}.");
    patch.hold(MODIFYING, None, Some(&modifying));
    let code = code_name(Code::InvalidArgument);
    patch.hold(MODIFY_ERROR, Some(code), Some(message));
    patch.finish(true)
}

/// The patch after a successful call. It stays true after other writes, so it names no version.
pub(super) fn end_patch(claim: &PersistentVolumeClaim, target: &str) -> Option<Value> {
    let mut patch = StatusPatch::of(claim);
    if status(claim).is_some() {
        patch.set("modifyVolumeStatus", Value::Null);
    }
    if current(claim) != target {
        patch.set("currentVolumeAttributesClassName", json!(target));
    }
    patch.drop(&[MODIFYING, MODIFY_ERROR]).finish(false)
}

/// The patch after the user withdrew the request.
pub(super) fn cancel_patch(claim: &PersistentVolumeClaim) -> Option<Value> {
    let mut patch = StatusPatch::of(claim);
    patch.drop(&[MODIFYING]).finish(false)
}

fn set_status(
    patch: &mut StatusPatch<'_>,
    claim: &PersistentVolumeClaim,
    written: &str,
    target: &str,
) {
    let same = status(claim).is_some_and(|status| {
        status.status == written
            && status.target_volume_attributes_class_name.as_deref() == Some(target)
    });
    if !same {
        let status = json!({"status": written, "targetVolumeAttributesClassName": target});
        patch.set("modifyVolumeStatus", status);
    }
}

/// Classifies a failed call.
pub(super) fn meaning(failure: &Failure) -> ErrorClass {
    class(CallKind::Modify, failure)
}

#[cfg(test)]
mod tests;
