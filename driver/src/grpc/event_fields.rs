//! The fields of requests and answers that events have. Only listed fields are shown: no secrets,
//! parameters, contexts or mount flags, all of which can be secret. Of the parameters, a snapshot's
//! shows that it is to be a power cut.

use hostloop_events::{Field, Fields};
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_content_source::Type;

use crate::controller::parameters::CONSISTENCY;
use crate::record::{Consistency, Parameters};

#[cfg(test)]
mod tests;

/// The fields of a message in its event.
pub(crate) trait EventFields {
    /// The fields; none by default.
    fn event_fields(&self) -> Fields {
        Fields::default()
    }
}

/// Implements [`EventFields`]: a row for each message, with its fields or a function for them.
macro_rules! fields {
    ($($message:ident |$m:ident| [$($field:ident),*] $(+ $more:expr)?;)+) => {
        $(
            impl EventFields for csi::$message {
                fn event_fields(&self) -> Fields {
                    let $m = self;
                    let fields = [$((stringify!($field), PlainField::field(&$m.$field))),*];
                    Fields::of(fields.into_iter()$(.chain($more))?)
                }
            }
        )+
    };
}

macro_rules! without_fields {
    ($($message:ident)+) => {
        $(impl EventFields for csi::$message {})+
    };
}

type NamedField = (&'static str, Field);

fields! {
    CreateVolumeRequest |m| [name] + range(&m.capacity_range)
        .chain(m.volume_capabilities.iter().take(1).flat_map(capability)).chain(source(m));
    CreateVolumeResponse |m| [] + m.volume.iter().flat_map(volume);
    DeleteVolumeRequest |m| [volume_id];
    ControllerPublishVolumeRequest |m| [volume_id, node_id, readonly];
    ControllerUnpublishVolumeRequest |m| [volume_id, node_id];
    ControllerExpandVolumeRequest |m| [volume_id] + range(&m.capacity_range);
    ControllerExpandVolumeResponse |m| [capacity_bytes, node_expansion_required];
    ControllerModifyVolumeRequest |m| [volume_id];
    CreateSnapshotRequest |m| [name, source_volume_id] + powercut(&m.parameters);
    CreateSnapshotResponse |m| [] + m.snapshot.iter().flat_map(snapshot);
    DeleteSnapshotRequest |m| [snapshot_id];
    CreateVolumeGroupSnapshotRequest |m| [name, source_volume_ids] + powercut(&m.parameters);
    CreateVolumeGroupSnapshotResponse |m| [] + m.group_snapshot.iter().flat_map(group);
    DeleteVolumeGroupSnapshotRequest |m| [group_snapshot_id, snapshot_ids];
    NodeStageVolumeRequest |m| [volume_id, staging_target_path]
        + m.volume_capability.iter().flat_map(capability);
    NodeUnstageVolumeRequest |m| [volume_id, staging_target_path];
    NodePublishVolumeRequest |m| [volume_id, target_path, staging_target_path, readonly]
        + m.volume_capability.iter().flat_map(capability);
    NodeUnpublishVolumeRequest |m| [volume_id, target_path];
    NodeExpandVolumeRequest |m| [volume_id, volume_path, staging_target_path]
        + range(&m.capacity_range);
    NodeExpandVolumeResponse |m| [capacity_bytes];
}

// RPCs that only read have no events, and the other answers have no fields.
without_fields! {
    ValidateVolumeCapabilitiesRequest ValidateVolumeCapabilitiesResponse
    ListVolumesRequest ListVolumesResponse
    ControllerListVolumeHealthRequest ControllerListVolumeHealthResponse
    ControllerGetVolumeHealthRequest ControllerGetVolumeHealthResponse
    GetCapacityRequest GetCapacityResponse
    ControllerGetCapabilitiesRequest ControllerGetCapabilitiesResponse
    ListSnapshotsRequest ListSnapshotsResponse
    GetSnapshotRequest GetSnapshotResponse
    ControllerGetVolumeRequest ControllerGetVolumeResponse
    GroupControllerGetCapabilitiesRequest GroupControllerGetCapabilitiesResponse
    GetVolumeGroupSnapshotRequest GetVolumeGroupSnapshotResponse
    GetMetadataAllocatedRequest GetMetadataDeltaRequest
    GetPluginInfoRequest GetPluginCapabilitiesRequest ProbeRequest
    NodeGetVolumeStatsRequest NodeGetVolumeStatsResponse
    NodeGetVolumeHealthRequest NodeGetVolumeHealthResponse
    NodeGetStorageHealthRequest NodeGetStorageHealthResponse
    NodeGetCapabilitiesRequest NodeGetCapabilitiesResponse
    NodeGetInfoRequest NodeGetInfoResponse
    DeleteVolumeResponse ControllerPublishVolumeResponse ControllerUnpublishVolumeResponse
    ControllerModifyVolumeResponse DeleteSnapshotResponse DeleteVolumeGroupSnapshotResponse
    NodeStageVolumeResponse NodeUnstageVolumeResponse NodePublishVolumeResponse
    NodeUnpublishVolumeResponse
}

/// Fields that messages have directly.
trait PlainField {
    fn field(&self) -> Field;
}

macro_rules! plain {
    ($($kind:ty: |$value:ident| $field:expr;)+) => {
        $(impl PlainField for $kind {
            fn field(&self) -> Field {
                let $value = self;
                $field.into()
            }
        })+
    };
}

plain! {
    String: |text| text;
    i64: |number| *number;
    bool: |flag| *flag;
    Vec<String>: |list| list;
}

fn range(range: &Option<csi::CapacityRange>) -> impl Iterator<Item = NamedField> + use<> {
    let range = range.unwrap_or_default();
    [
        ("required_bytes", range.required_bytes.into()),
        ("limit_bytes", range.limit_bytes.into()),
    ]
    .into_iter()
}

/// How the volume is to be used, without its mount flags.
fn capability(capability: &csi::VolumeCapability) -> Vec<NamedField> {
    let mode = capability
        .access_mode
        .as_ref()
        .and_then(|mode| Mode::try_from(mode.mode).ok());
    let mode = (
        "access_mode",
        mode.map_or("", |mode| mode.as_str_name()).into(),
    );
    match &capability.access_type {
        Some(AccessType::Block(_)) => vec![("access_type", "block".into()), mode],
        Some(AccessType::Mount(mount)) => {
            vec![
                ("access_type", "mount".into()),
                ("fs_type", (&mount.fs_type).into()),
                mode,
            ]
        }
        None => vec![mode],
    }
}

/// The snapshot or volume that a new volume is copied from.
fn source(request: &csi::CreateVolumeRequest) -> Option<NamedField> {
    let source = request.volume_content_source.as_ref()?;
    Some(match source.r#type.as_ref()? {
        Type::Snapshot(snapshot) => ("source_snapshot_id", (&snapshot.snapshot_id).into()),
        Type::Volume(volume) => ("source_volume_id", (&volume.volume_id).into()),
    })
}

/// The consistency of a snapshot or group that is to be a power cut.
fn powercut(parameters: &Parameters) -> Option<NamedField> {
    let powercut = Consistency::Powercut.as_str();
    let requested = parameters.get(CONSISTENCY)?;
    (requested == powercut).then(|| (CONSISTENCY, powercut.into()))
}

fn volume(volume: &csi::Volume) -> [NamedField; 2] {
    [
        ("volume_id", (&volume.volume_id).into()),
        ("capacity_bytes", volume.capacity_bytes.into()),
    ]
}

fn snapshot(snapshot: &csi::Snapshot) -> [NamedField; 4] {
    [
        ("snapshot_id", (&snapshot.snapshot_id).into()),
        ("source_volume_id", (&snapshot.source_volume_id).into()),
        ("size_bytes", snapshot.size_bytes.into()),
        ("ready_to_use", snapshot.ready_to_use.into()),
    ]
}

fn group(group: &csi::VolumeGroupSnapshot) -> [NamedField; 3] {
    let snapshots = group
        .snapshots
        .iter()
        .map(|snapshot| snapshot.snapshot_id.clone());
    [
        ("group_snapshot_id", (&group.group_snapshot_id).into()),
        ("snapshot_ids", (&snapshots.collect::<Vec<_>>()).into()),
        ("ready_to_use", group.ready_to_use.into()),
    ]
}
