//! The kinds of `snapshot.storage.k8s.io/v1` and `groupsnapshot.storage.k8s.io/v1`, as the
//! snapshot-controller, its driver-side loop and their users know them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

pub mod crds;

/// What happens to the snapshot when its objects are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DeletionPolicy {
    /// It is deleted.
    #[default]
    Delete,
    /// It is kept.
    Retain,
}

/// The last error.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotError {
    /// The time of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// The error's message. It may be logged and must not contain secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The source of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    /// A claim in the same namespace, to be snapshotted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    /// A content made beforehand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_content_name: Option<String>,
}

/// A user's snapshot of a claim.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    namespaced,
    status = "VolumeSnapshotStatus",
    derive = "PartialEq",
    shortname = "vs"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// Its source.
    pub source: SnapshotSource,
    /// Its class; the default one of the driver if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

/// The observed state of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// The content it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    /// When it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// True if volumes can be restored from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The least size of a volume restored from it, as a quantity.
    #[serde(
        default,
        deserialize_with = "quantity",
        skip_serializing_if = "Option::is_none"
    )]
    pub restore_size: Option<String>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
    /// The group snapshot it is a member of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_name: Option<String>,
}

/// The source of a content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    /// The CSI volume to be snapshotted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// A CSI snapshot made beforehand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
}

/// A snapshot as the driver knows it.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshotContent",
    status = "VolumeSnapshotContentStatus",
    derive = "PartialEq",
    shortname = "vsc",
    shortname = "vscs"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotContentSpec {
    /// The snapshot it is bound to.
    pub volume_snapshot_ref: ObjectReference,
    /// What happens to the CSI snapshot when this is deleted.
    pub deletion_policy: DeletionPolicy,
    /// The driver's name.
    pub driver: String,
    /// The class it was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    /// Its source.
    pub source: ContentSource,
    /// The volume mode of the source, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_volume_mode: Option<String>,
}

/// The observed state of a content.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotContentStatus {
    /// The CSI snapshot's ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// When it was taken, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    /// The least size of a volume restored from it, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    /// True if volumes can be restored from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
    /// The CSI group snapshot it is a member of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_handle: Option<String>,
}

/// How snapshots are taken. Its fields stand beside its metadata, without a spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotClass {
    /// Its metadata.
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// The driver's name.
    pub driver: String,
    /// Parameters for the driver. Those with the prefix `csi.storage.k8s.io/` are for the
    /// controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BTreeMap<String, String>>,
    /// What happens to its snapshots when their objects are deleted.
    pub deletion_policy: DeletionPolicy,
}

/// The source of a group snapshot.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSource {
    /// Claims in the same namespace, to be snapshotted together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// A content made beforehand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_content_name: Option<String>,
}

/// A user's snapshot of several claims at one moment.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "groupsnapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeGroupSnapshot",
    namespaced,
    status = "VolumeGroupSnapshotStatus",
    derive = "PartialEq",
    shortname = "vgs"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotSpec {
    /// Its source.
    pub source: GroupSource,
    /// Its class; the default one of the driver if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_class_name: Option<String>,
}

/// The observed state of a group snapshot.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotStatus {
    /// The content it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_group_snapshot_content_name: Option<String>,
    /// When it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// True if volumes can be restored from all of its members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
}

/// The source of a group content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupContentSource {
    /// The CSI volumes to be snapshotted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handles: Option<Vec<String>>,
    /// CSI snapshots made beforehand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_snapshot_handles: Option<GroupSnapshotHandles>,
}

/// A CSI group snapshot made beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshotHandles {
    /// Its ID.
    pub volume_group_snapshot_handle: String,
    /// The IDs of its members.
    pub volume_snapshot_handles: Vec<String>,
}

/// A group snapshot as the driver knows it.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "groupsnapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeGroupSnapshotContent",
    status = "VolumeGroupSnapshotContentStatus",
    derive = "PartialEq",
    shortname = "vgsc",
    shortname = "vgscs"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotContentSpec {
    /// The group snapshot it is bound to.
    pub volume_group_snapshot_ref: ObjectReference,
    /// What happens to the CSI group snapshot when this is deleted.
    pub deletion_policy: DeletionPolicy,
    /// The driver's name.
    pub driver: String,
    /// The class it was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_class_name: Option<String>,
    /// Its source.
    pub source: GroupContentSource,
}

/// The observed state of a group content.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotContentStatus {
    /// The CSI group snapshot's ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_handle: Option<String>,
    /// When it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// True if volumes can be restored from all of its members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
    /// Its members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_info_list: Option<Vec<SnapshotInfo>>,
}

/// A member of a group snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInfo {
    /// The CSI volume it was taken of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// The CSI snapshot's ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// When it was taken, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    /// True if volumes can be restored from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The least size of a volume restored from it, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
}

/// How group snapshots are taken. Its fields stand beside its metadata, without a spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotClass {
    /// Its metadata.
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// The driver's name.
    pub driver: String,
    /// Parameters for the driver. Those with the prefix `csi.storage.k8s.io/` are for the
    /// controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BTreeMap<String, String>>,
    /// What happens to its group snapshots when their objects are deleted.
    pub deletion_policy: DeletionPolicy,
}

/// A quantity, which others may have written as a number. One such object must not make a whole list
/// unreadable.
fn quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<Quantity>::deserialize(deserializer)?.map(|quantity| quantity.0))
}

/// A kind without a spec, which the derive does not know.
macro_rules! specless {
    ($kind:ident, $group:literal, $plural:literal) => {
        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = ClusterResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($kind).into()
            }
            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                "v1".into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

specless!(
    VolumeSnapshotClass,
    "snapshot.storage.k8s.io",
    "volumesnapshotclasses"
);
specless!(
    VolumeGroupSnapshotClass,
    "groupsnapshot.storage.k8s.io",
    "volumegroupsnapshotclasses"
);
