//! Decides to which size a volume is expanded now, and how the claim records it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use crate::api::constants::NODE_EXPANSION_NOT_REQUIRED;
use crate::api::pvc;
use crate::resizer::claim::{
    CONTROLLER_RESIZE_ERROR, FILE_SYSTEM_RESIZE_PENDING, NODE_RESIZE_ERROR, RESIZE_CONDITIONS,
    RESIZING, StatusPatch, allocated, capacity, is_bound, resize_status, size,
};
use crate::resizer::recover::{CONTROLLER_IN_PROGRESS, CONTROLLER_INFEASIBLE, NODE_PENDING, Sizes};

/// A claim with its volume, and what is known of earlier attempts.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) claim: Arc<PersistentVolumeClaim>,
    pub(super) volume: Arc<PersistentVolume>,
    /// True if the last attempt failed with a final error.
    pub(super) final_error: bool,
    /// True if the last attempt failed because the volume was in use.
    pub(super) in_use: bool,
    /// The remaining time before an infeasible expansion is tried again.
    pub(super) wait: Option<Duration>,
}

/// What to do for a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Nothing,
    /// The same expansion was infeasible: do nothing before this time has passed.
    Wait(Duration),
    Expand {
        target: Quantity,
        /// True if the claim records an expansion to this size already.
        same: bool,
    },
}

/// Decides what to do for a claim. `controller_expands`: the driver expands in its controller, not
/// only on the node.
pub(super) fn decide(facts: &Facts, controller_expands: bool) -> Step {
    let claim = &*facts.claim;
    let sizes = Sizes::of(claim, &facts.volume, facts.final_error, controller_expands);
    let Some(target) = sizes.and_then(|sizes| sizes.target()) else {
        return Step::Nothing;
    };
    let begun = allocated(claim);
    let same = begun.is_some() && size(begun) == size(Some(target));
    match facts.wait {
        Some(left) if same => Step::Wait(left),
        _ => Step::Expand {
            target: target.clone(),
            same,
        },
    }
}

/// The result of an expansion.
pub(super) struct Expanded {
    pub(super) capacity: Quantity,
    /// True if the node has to grow the filesystem.
    pub(super) node_too: bool,
}

/// True if a change of a claim needs work: a new request, or a result of kubelet. The resizer's own
/// writes do not.
pub(in crate::resizer) fn asks(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let ours = [CONTROLLER_IN_PROGRESS, CONTROLLER_INFEASIBLE, NODE_PENDING];
    let status = resize_status(new);
    size(pvc::request(old)) != size(pvc::request(new))
        || size(capacity(new)) != size(capacity(old))
        || resize_status(old) != status && !ours.contains(&status)
        || !is_bound(old) && is_bound(new)
}

/// The patch before the call. If the target size is the `same` as before, it is the same expansion,
/// and the patch only marks it as in progress.
pub(super) fn begin_patch(
    claim: &PersistentVolumeClaim,
    target: &Quantity,
    same: bool,
) -> Option<Value> {
    let mut patch = StatusPatch::of(claim);
    patch
        .hold(RESIZING, None, None)
        .annotation(NODE_EXPANSION_NOT_REQUIRED, None)
        .allocated(target);
    if !same {
        let others = [
            FILE_SYSTEM_RESIZE_PENDING,
            CONTROLLER_RESIZE_ERROR,
            NODE_RESIZE_ERROR,
        ];
        patch
            .drop(&others)
            .resize_status(Some(CONTROLLER_IN_PROGRESS));
    }
    patch.finish(true)
}

/// The patch after a successful call.
pub(super) fn end_patch(claim: &PersistentVolumeClaim, expanded: &Expanded) -> Option<Value> {
    let mut patch = StatusPatch::of(claim);
    if expanded.node_too {
        let message = "Waiting for the node to grow the filesystem, when a pod uses the volume.";
        patch
            .hold(FILE_SYSTEM_RESIZE_PENDING, None, Some(message))
            .annotation(NODE_EXPANSION_NOT_REQUIRED, None)
            .resize_status(Some(NODE_PENDING));
    } else {
        patch
            .drop(&RESIZE_CONDITIONS)
            .annotation(NODE_EXPANSION_NOT_REQUIRED, Some("true"))
            .resize_status(None)
            .capacity(&expanded.capacity);
    }
    patch.finish(true)
}

/// The patch after a final error. It stays true after other writes, so it names no version.
pub(super) fn failure_patch(
    claim: &PersistentVolumeClaim,
    message: &str,
    infeasible: bool,
) -> Option<Value> {
    let mut patch = StatusPatch::of(claim);
    patch.hold(CONTROLLER_RESIZE_ERROR, None, Some(message));
    if infeasible {
        patch.resize_status(Some(CONTROLLER_INFEASIBLE));
    }
    patch.finish(false)
}

#[cfg(test)]
mod tests;
