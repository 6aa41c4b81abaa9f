//! Claims: what they say, and whether a volume is to be made for one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use crate::runtime::Scope;
use crate::runtime::scope::SELECTED_NODE;

use super::names::{CLASS_BETA, MIGRATED_TO, PROVISIONER, PROVISIONER_BETA};
use crate::provisioner::source::Asked;
use crate::quantity;

/// The volume mode where none is told.
pub(crate) const FILESYSTEM: &str = "Filesystem";
/// The other one.
pub(crate) const BLOCK: &str = "Block";

/// An annotation that says something.
fn annotation<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    let value = claim.annotations().get(key).map(String::as_str);
    value.filter(|value| !value.is_empty())
}

/// The StorageClass that a claim names. The beta annotation wins over the field, even if it is
/// empty.
pub(crate) fn class_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    told_class(claim).filter(|name| !name.is_empty())
}

/// The class annotation or field as written. "" means no class, and opts out of the default class.
pub(crate) fn told_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let field = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_ref());
    let annotated = claim.annotations().get(CLASS_BETA);
    annotated.or(field).map(String::as_str)
}

/// The volume a claim names, or got.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref());
    name.filter(|name| !name.is_empty())
}

/// How the volume is to be seen.
pub(crate) fn volume_mode(claim: &PersistentVolumeClaim) -> &str {
    let mode = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_mode.as_deref());
    mode.unwrap_or(FILESYSTEM)
}

/// The attributes class a claim names.
pub(crate) fn attributes_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let spec = claim.spec.as_ref();
    let name = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    name.filter(|name| !name.is_empty())
}

/// The node the scheduler chose.
pub(crate) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(claim, SELECTED_NODE)
}

/// The size asked for, or what is there in its stead.
pub(crate) fn requested(claim: &PersistentVolumeClaim) -> Result<i64, String> {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let text = requests.and_then(|requests| requests.get("storage"));
    let text = text.map(|quantity| quantity.0.as_str()).unwrap_or_default();
    let size = quantity::bytes(text).filter(|size| *size > 0);
    size.ok_or_else(|| text.to_owned())
}

/// Whether it has no volume yet, as far as is known.
pub(crate) fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.is_none_or(|phase| phase == "Pending")
}

/// Whether this driver must provision the claim, judged by the claim alone. The beta annotation
/// counts only without the current one.
pub(crate) fn is_for(claim: &PersistentVolumeClaim, driver: &str) -> bool {
    let annotations = claim.annotations();
    let provisioner = annotations.get(PROVISIONER);
    let provisioner = provisioner.or_else(|| annotations.get(PROVISIONER_BETA));
    volume_name(claim).is_none()
        && (provisioner.is_some_and(|provisioner| provisioner == driver)
            || annotation(claim, MIGRATED_TO) == Some(driver))
}

/// Whether its volume is to be made by this driver on this node.
pub(crate) fn is_assigned(claim: &PersistentVolumeClaim, driver: &str, node: &str) -> bool {
    is_for(claim, driver) && selected_node(claim) == Some(node)
}

/// Who decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing<'a> {
    /// The driver's name.
    pub(crate) driver: &'a str,
    /// Whose claims are served.
    pub(crate) scope: &'a Scope,
    /// Whether this process does the cluster's work.
    pub(crate) leads: bool,
}

/// Whether a claim is this process's, if it is to get a volume. Where one process serves each
/// node, a claim no node was selected for is nobody's: the leader selects one, or the scheduler.
pub(crate) fn is_here(claim: &PersistentVolumeClaim, standing: Standing<'_>) -> bool {
    match (standing.scope, selected_node(claim)) {
        (Scope::Cluster, _) => standing.leads,
        (Scope::Node { name, .. }, Some(node)) => node == name,
        (Scope::Node { .. }, None) | (Scope::Leader, _) => false,
    }
}

/// Whether a volume is to be made for a claim, here and now.
pub(crate) fn is_due(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    standing: Standing<'_>,
) -> bool {
    let driver = standing.driver;
    if !is_for(claim, driver) || !is_of(class, claim, driver) {
        return false;
    }
    let placed = !is_delayed(class) || selected_node(claim).is_some();
    placed && is_here(claim, standing)
}

/// Whether a class has its claims served by this driver: its own, or one whose claims it took over.
pub(crate) fn is_of(class: &StorageClass, claim: &PersistentVolumeClaim, driver: &str) -> bool {
    class.provisioner == driver || annotation(claim, MIGRATED_TO) == Some(driver)
}

/// Whether volumes of a class wait until a pod needs them.
pub(crate) fn is_delayed(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// Whether a claim could get its volume on another node than the selected one, if there is no room
/// here. One with a source could not, where volumes are a node's: it is where its source is.
pub(crate) fn is_movable(
    claim: &PersistentVolumeClaim,
    scope: &Scope,
    has_topology: bool,
    asked: &Asked,
) -> bool {
    let sourced = matches!(asked, Asked::Snapshot(_) | Asked::Claim(_));
    let elsewhere = match scope {
        Scope::Cluster => has_topology,
        Scope::Node { .. } | Scope::Leader => !sourced,
    };
    elsewhere && selected_node(claim).is_some()
}

/// Whether a volume that was made for a claim is still wanted, by how the claim is now. `Err`
/// says why not.
pub(crate) fn still_wants(
    now: Option<&PersistentVolumeClaim>,
    then: &PersistentVolumeClaim,
    volume: &str,
    scope: &Scope,
) -> Result<(), &'static str> {
    let Some(now) = now.filter(|now| now.uid() == then.uid()) else {
        return Err("its claim is gone");
    };
    if volume_name(now).is_some_and(|name| name != volume) {
        return Err("its claim has got another volume");
    }
    // A volume of one node is of no use to a pod that was moved to another.
    let moved = selected_node(now) != selected_node(then);
    if scope.node().is_some() && moved {
        return Err("its claim was moved to another node");
    }
    Ok(())
}

/// No annotations, where some are needed by reference.
pub(crate) static NO_ANNOTATIONS: BTreeMap<String, String> = BTreeMap::new();

#[cfg(test)]
mod tests;
