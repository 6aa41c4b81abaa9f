//! Reads PersistentVolumeClaims, and decides whether a claim is due for a volume.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::constants::{
    CLASS_BETA, FAULT, MIGRATED_TO, PROVISIONER, PROVISIONER_BETA, RESERVED, SNAPSHOT_GROUP,
};
use crate::api::scope::{SELECTED_NODE, Scope};
use crate::api::{quantity, volume_mode};

/// A claim's annotation, unless it is empty.
fn annotation<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    let value = claim.annotations().get(key).map(String::as_str);
    value.filter(|value| !value.is_empty())
}

/// The StorageClass that a claim names. The beta annotation wins over the field, even if it is
/// empty.
pub(crate) fn class_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    written_class(claim).filter(|name| !name.is_empty())
}

/// The parameters that give a driver the names of a claim and its volume.
pub(crate) fn names(claim: &PersistentVolumeClaim, volume: &str) -> [(String, String); 3] {
    [
        ("pvc/name", claim.name_any()),
        ("pvc/namespace", claim.namespace().unwrap_or_default()),
        ("pv/name", volume.to_owned()),
    ]
    .map(|(key, value)| (format!("{RESERVED}{key}"), value))
}

/// The class annotation or field as written. "" means no class, and opts out of the default class.
pub(crate) fn written_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let field = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_ref());
    let annotated = claim.annotations().get(CLASS_BETA);
    annotated.or(field).map(String::as_str)
}

/// The PersistentVolume that a claim names or is bound to.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref());
    name.filter(|name| !name.is_empty())
}

/// The index key of a claim without a volume: its class.
pub(crate) fn pending_class(claim: &PersistentVolumeClaim) -> Vec<String> {
    let name = class_name(claim).filter(|_| volume_name(claim).is_none());
    name.map(str::to_owned).into_iter().collect()
}

/// The index key of a claim without a volume: its VolumeAttributesClass.
pub(crate) fn pending_attributes_class(claim: &PersistentVolumeClaim) -> Vec<String> {
    let name = attributes_class(claim).filter(|_| volume_name(claim).is_none());
    name.map(str::to_owned).into_iter().collect()
}

/// The volume mode, `Filesystem` by default.
pub(crate) fn volume_mode(claim: &PersistentVolumeClaim) -> &str {
    let mode = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_mode.as_deref());
    mode.unwrap_or(volume_mode::FILESYSTEM)
}

/// The VolumeAttributesClass that a claim names.
pub(crate) fn attributes_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let spec = claim.spec.as_ref();
    let name = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    name.filter(|name| !name.is_empty())
}

/// The node that the scheduler or the leader selected.
pub(crate) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(claim, SELECTED_NODE)
}

/// The fault that the claim's volume is to have, as written.
pub(crate) fn fault(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(claim, FAULT)
}

/// The requested size as written.
pub(crate) fn request(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    resources.requests.as_ref()?.get("storage")
}

/// The requested size in bytes, or the invalid text in its place.
pub(crate) fn requested(claim: &PersistentVolumeClaim) -> Result<i64, String> {
    let text = request(claim)
        .map(|quantity| quantity.0.as_str())
        .unwrap_or_default();
    let size = quantity::bytes(text).filter(|size| *size > 0);
    size.ok_or_else(|| text.to_owned())
}

pub(crate) fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

/// True if the claim is bound to a volume, according to its phase.
pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    phase(claim) == Some("Bound")
}

/// True if the claim is not bound to a volume yet, according to its phase.
pub(crate) fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    phase(claim).is_none_or(|phase| phase == "Pending")
}

/// True if the claim was created before the deletion of its source began. Such a claim keeps its
/// source, and gets its volume from it. A later one does neither: otherwise both would wait for
/// each other. Times have whole seconds, and the earlier order counts within one.
pub(crate) fn precedes_deletion(claim: &PersistentVolumeClaim, source: &ObjectMeta) -> bool {
    let created = claim.metadata.creation_timestamp.as_ref();
    match (created, &source.deletion_timestamp) {
        (Some(created), Some(deleted)) => created.0 <= deleted.0,
        _ => true,
    }
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

/// True if this driver must create the claim's volume on this node.
pub(crate) fn is_assigned(claim: &PersistentVolumeClaim, driver: &str, node: &str) -> bool {
    is_for(claim, driver) && selected_node(claim) == Some(node)
}

/// The process that decides about a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimContext<'a> {
    pub(crate) driver: &'a str,
    /// The claims that this process serves.
    pub(crate) scope: &'a Scope,
    pub(crate) leads: bool,
}

/// True if this process serves the claim. If one process serves each node, a claim without a
/// selected node waits for the leader or the scheduler to select one.
pub(crate) fn is_here(claim: &PersistentVolumeClaim, context: ClaimContext<'_>) -> bool {
    match (context.scope, selected_node(claim)) {
        (Scope::Cluster, _) => context.leads,
        (Scope::Node { name, .. }, Some(node)) => node == name,
        (Scope::Node { .. }, None) | (Scope::Leader, _) => false,
    }
}

/// True if this process must create a volume for the claim now.
pub(crate) fn is_due(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    context: ClaimContext<'_>,
) -> bool {
    let driver = context.driver;
    if !is_for(claim, driver) || !is_of(class, claim, driver) {
        return false;
    }
    let placed = !is_delayed(class) || selected_node(claim).is_some();
    placed && is_here(claim, context)
}

/// True if this driver serves the claim's class: the class names this driver, or the claim is
/// migrated to it.
pub(crate) fn is_of(class: &StorageClass, claim: &PersistentVolumeClaim, driver: &str) -> bool {
    class.provisioner == driver || annotation(claim, MIGRATED_TO) == Some(driver)
}

/// True if volumes of a class wait for their first pod.
pub(crate) fn is_delayed(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// The data source of a claim's volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DataSource {
    /// Nothing: the volume is empty.
    Nothing,
    /// A VolumeSnapshot in the claim's namespace.
    Snapshot(String),
    /// The volume of a claim in the same namespace.
    Claim(String),
    /// An object of this kind, which an external populator handles.
    Other(String),
}

impl DataSource {
    /// The kind of the source for metrics; empty if there is no source. Foreign kinds count
    /// together, because users name them.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            DataSource::Nothing => "",
            DataSource::Snapshot(_) => "VolumeSnapshot",
            DataSource::Claim(_) => "PersistentVolumeClaim",
            DataSource::Other(_) => "other",
        }
    }
}

/// A data source that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DataSourceError {
    #[error(
        "spec.dataSourceRef.namespace is {namespace:?}: sources in other namespaces are not \
         supported (feature CrossNamespaceVolumeDataSource is off)"
    )]
    OtherNamespace { namespace: String },
    #[error("spec.dataSource has no name")]
    NoName,
}

/// The data source of a claim. `dataSourceRef` wins over `dataSource`.
pub(crate) fn data_source(claim: &PersistentVolumeClaim) -> Result<DataSource, DataSourceError> {
    let Some(spec) = &claim.spec else {
        return Ok(DataSource::Nothing);
    };
    let (group, kind, name, namespace) = match (&spec.data_source_ref, &spec.data_source) {
        (Some(one), _) => (&one.api_group, &one.kind, &one.name, one.namespace.as_ref()),
        (None, Some(one)) => (&one.api_group, &one.kind, &one.name, None),
        (None, None) => return Ok(DataSource::Nothing),
    };
    let source = match (group.as_deref().unwrap_or_default(), kind.as_str()) {
        ("", "PersistentVolumeClaim") => DataSource::Claim(name.clone()),
        (SNAPSHOT_GROUP, "VolumeSnapshot") => DataSource::Snapshot(name.clone()),
        ("", kind) => return Ok(DataSource::Other(kind.to_owned())),
        (group, kind) => return Ok(DataSource::Other(format!("{kind}.{group}"))),
    };
    let other =
        namespace.filter(|other| !other.is_empty() && claim.namespace().as_ref() != Some(other));
    if let Some(namespace) = other {
        let namespace = namespace.clone();
        return Err(DataSourceError::OtherNamespace { namespace });
    }
    if name.is_empty() {
        return Err(DataSourceError::NoName);
    }
    Ok(source)
}

#[cfg(test)]
mod tests;
