//! The kinds of `snapshot.storage.k8s.io/v1` and `groupsnapshot.storage.k8s.io/v1`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use kube::CustomResource;
use kube::api::TypeMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// What happens to the snapshot when its objects are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DeletionPolicy {
    /// The snapshot is deleted.
    #[default]
    Delete,
    /// The snapshot is kept.
    Retain,
}

/// The last error.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotError {
    /// The time of the error.
    #[serde(
        default,
        deserialize_with = "time",
        skip_serializing_if = "Option::is_none"
    )]
    pub time: Option<Time>,
    /// The error's message. It may be logged and must not contain secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    /// The claim in the same namespace to snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    /// The name of a pre-provisioned content.
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
    pub source: SnapshotSource,
    /// The snapshot class; by default, the driver's default class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

impl VolumeSnapshot {
    /// The name of the content that the snapshot is bound to.
    pub fn bound_content(&self) -> Option<&str> {
        let name = self
            .status
            .as_ref()?
            .bound_volume_snapshot_content_name
            .as_deref();
        name.filter(|name| !name.is_empty())
    }
}

/// The observed state of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    /// The time at which the snapshot was taken.
    #[serde(
        default,
        deserialize_with = "time",
        skip_serializing_if = "Option::is_none"
    )]
    pub creation_time: Option<Time>,
    /// True if volumes can be restored from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The minimum size of a restored volume, as a quantity.
    #[serde(
        default,
        deserialize_with = "quantity",
        skip_serializing_if = "Option::is_none"
    )]
    pub restore_size: Option<String>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
    /// The group snapshot that the snapshot belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    /// The CSI volume to snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// The ID of a pre-provisioned CSI snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
}

/// A CSI snapshot, as the driver reports it.
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
    /// The VolumeSnapshot that the content is bound to.
    pub volume_snapshot_ref: ObjectReference,
    /// What happens to the CSI snapshot when the content is deleted.
    pub deletion_policy: DeletionPolicy,
    /// The driver's name.
    pub driver: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
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
    /// The time at which the snapshot was taken, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    /// The minimum size of a restored volume, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    /// True if volumes can be restored from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
    /// The ID of the CSI group snapshot that the snapshot belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_handle: Option<String>,
}

/// The source of a group snapshot.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSource {
    /// A selector of the claims in the same namespace to snapshot together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The name of a pre-provisioned group content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_content_name: Option<String>,
}

/// A user's snapshot of several claims at one point in time.
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
    /// The source of the group snapshot.
    pub source: GroupSource,
    /// The group snapshot class; by default, the driver's default class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_class_name: Option<String>,
}

/// The observed state of a group snapshot.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_group_snapshot_content_name: Option<String>,
    /// The time at which the group snapshot was taken.
    #[serde(
        default,
        deserialize_with = "time",
        skip_serializing_if = "Option::is_none"
    )]
    pub creation_time: Option<Time>,
    /// True if volumes can be restored from all of its members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupContentSource {
    /// The CSI volumes to snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handles: Option<Vec<String>>,
    /// The IDs of pre-provisioned CSI snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_snapshot_handles: Option<GroupSnapshotHandles>,
}

/// A pre-provisioned CSI group snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshotHandles {
    /// The ID of the group snapshot.
    pub volume_group_snapshot_handle: String,
    /// The IDs of its member snapshots.
    pub volume_snapshot_handles: Vec<String>,
}

/// A CSI group snapshot, as the driver reports it.
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
    /// The VolumeGroupSnapshot that the content is bound to.
    pub volume_group_snapshot_ref: ObjectReference,
    /// What happens to the CSI group snapshot when the content is deleted.
    pub deletion_policy: DeletionPolicy,
    /// The driver's name.
    pub driver: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_class_name: Option<String>,
    pub source: GroupContentSource,
}

/// The observed state of a group content.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotContentStatus {
    /// The CSI group snapshot's ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_handle: Option<String>,
    /// The time at which the group snapshot was taken.
    #[serde(
        default,
        deserialize_with = "time",
        skip_serializing_if = "Option::is_none"
    )]
    pub creation_time: Option<Time>,
    /// True if volumes can be restored from all of its members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
    /// The member snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_info_list: Option<Vec<SnapshotInfo>>,
}

/// A member of a group snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInfo {
    /// The CSI volume that was snapshotted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// The CSI snapshot's ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// The time at which the snapshot was taken, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    /// True if volumes can be restored from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The minimum size of a restored volume, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
}

/// Reads a quantity, which other clients may have written as a number. One such object must not
/// make a whole list unreadable.
fn quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<Quantity>::deserialize(deserializer)?.map(|quantity| quantity.0))
}

/// Reads a time. The API server takes more for one than RFC 3339 does, such as an offset of 99
/// hours. Then there is none: one such object must not make a whole list unreadable.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()).map(Time))
}

/// A class: a kind without a spec, which the `CustomResource` derive does not support.
macro_rules! class {
    ($(#[$doc:meta])* $kind:ident, $group:literal, $plural:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        pub struct $kind {
            /// Kind and version, which a new object must have.
            #[serde(flatten)]
            #[schemars(skip)]
            pub types: Option<TypeMeta>,
            /// Kubernetes object metadata.
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

class! {
    /// A class of snapshots. Its fields stand beside its metadata, without a spec.
    VolumeSnapshotClass, "snapshot.storage.k8s.io", "volumesnapshotclasses"
}
class! {
    /// A class of group snapshots. Its fields stand beside its metadata, without a spec.
    VolumeGroupSnapshotClass, "groupsnapshot.storage.k8s.io", "volumegroupsnapshotclasses"
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The API server accepts each of these as a date-time.
    #[test]
    fn a_time_that_is_none_leaves_the_object_readable() {
        for text in [
            "2026-01-01T00:00:00+99:99",
            "2026-01-01T00:00:00ZTomorrow",
            "2026-01-01T00:00:00x5Z",
            "2026-01-01T00:00:00-00:99",
        ] {
            let spec = json!({"source": {}});
            let status = json!({"creationTime": text, "error": {"time": text, "message": "m"}});
            let read = |status: Value| -> VolumeSnapshotStatus {
                let snapshot = json!({"metadata": {}, "spec": spec, "status": status});
                let snapshot: VolumeSnapshot = serde_json::from_value(snapshot).expect("readable");
                snapshot.status.expect("a status")
            };
            let found = read(status);
            assert_eq!(found.creation_time, None, "{text}");
            let error = SnapshotError {
                time: None,
                message: Some("m".to_owned()),
            };
            assert_eq!(found.error, Some(error), "{text}");
            let known = read(json!({"creationTime": "2026-01-01T00:00:00Z"}));
            assert!(known.creation_time.is_some());
            assert_eq!(read(json!({"creationTime": null})).creation_time, None);
            let group: VolumeGroupSnapshotStatus =
                serde_json::from_value(json!({"creationTime": text})).expect("readable");
            assert_eq!(group.creation_time, None, "{text}");
            let content: VolumeGroupSnapshotContentStatus =
                serde_json::from_value(json!({"creationTime": text})).expect("readable");
            assert_eq!(content.creation_time, None, "{text}");
        }
    }
}
