use std::collections::BTreeMap;

use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use hostloop_proto::csi::volume_content_source::SnapshotSource;
use serde_json::{Value, json};

use super::*;

const SECRET: &str = "hush-31c7d2";

fn secrets() -> BTreeMap<String, String> {
    BTreeMap::from([(format!("key-{SECRET}"), format!("value-{SECRET}"))])
}

fn capability() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: "xfs".to_owned(),
            mount_flags: vec![format!("password={SECRET}")],
            volume_mount_group: format!("9{SECRET}"),
        })),
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    }
}

fn range() -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes: 4096,
        limit_bytes: 0,
    })
}

fn json(message: &impl EventFields) -> Value {
    serde_json::to_value(message.event_fields()).unwrap()
}

/// Requests with a secret in each field that may have one.
#[test]
fn nothing_secret_is_in_an_event() {
    let id = || "vol-1".to_owned();
    let source = csi::VolumeContentSource {
        r#type: Some(Type::Snapshot(SnapshotSource {
            snapshot_id: "snap-1".to_owned(),
        })),
    };
    let table = [
        json(&csi::CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            capacity_range: range(),
            volume_capabilities: vec![capability()],
            parameters: secrets(),
            secrets: secrets(),
            volume_content_source: Some(source),
            mutable_parameters: secrets(),
            ..Default::default()
        }),
        json(&csi::DeleteVolumeRequest {
            volume_id: id(),
            secrets: secrets(),
        }),
        json(&csi::ControllerPublishVolumeRequest {
            volume_id: id(),
            node_id: "n1".to_owned(),
            volume_capability: Some(capability()),
            readonly: true,
            secrets: secrets(),
            volume_context: secrets(),
        }),
        json(&csi::ControllerUnpublishVolumeRequest {
            volume_id: id(),
            node_id: "n1".to_owned(),
            secrets: secrets(),
        }),
        json(&csi::ControllerExpandVolumeRequest {
            volume_id: id(),
            capacity_range: range(),
            secrets: secrets(),
            volume_capability: Some(capability()),
        }),
        json(&csi::ControllerModifyVolumeRequest {
            volume_id: id(),
            secrets: secrets(),
            mutable_parameters: secrets(),
        }),
        json(&csi::CreateSnapshotRequest {
            source_volume_id: id(),
            name: "snapshot-1".to_owned(),
            secrets: secrets(),
            parameters: secrets(),
            ..Default::default()
        }),
        json(&csi::DeleteSnapshotRequest {
            snapshot_id: "snap-1".to_owned(),
            secrets: secrets(),
        }),
        json(&csi::CreateVolumeGroupSnapshotRequest {
            name: "group-1".to_owned(),
            source_volume_ids: vec![id()],
            secrets: secrets(),
            parameters: secrets(),
        }),
        json(&csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: "group-1".to_owned(),
            snapshot_ids: vec!["snap-1".to_owned()],
            secrets: secrets(),
        }),
        json(&csi::NodeStageVolumeRequest {
            volume_id: id(),
            publish_context: secrets(),
            staging_target_path: "/stage".to_owned(),
            volume_capability: Some(capability()),
            secrets: secrets(),
            volume_context: secrets(),
        }),
        json(&csi::NodePublishVolumeRequest {
            volume_id: id(),
            publish_context: secrets(),
            staging_target_path: "/stage".to_owned(),
            target_path: "/target".to_owned(),
            volume_capability: Some(capability()),
            readonly: false,
            secrets: secrets(),
            volume_context: secrets(),
        }),
        json(&csi::NodeExpandVolumeRequest {
            volume_id: id(),
            volume_path: "/target".to_owned(),
            capacity_range: range(),
            staging_target_path: "/stage".to_owned(),
            volume_capability: Some(capability()),
            secrets: secrets(),
        }),
        json(&csi::CreateVolumeResponse {
            volume: Some(csi::Volume {
                capacity_bytes: 4096,
                volume_id: id(),
                volume_context: secrets(),
                ..Default::default()
            }),
        }),
    ];
    for fields in &table {
        assert!(!fields.to_string().contains(SECRET), "{fields}");
        assert!(!fields.as_object().unwrap().is_empty());
    }
    assert_eq!(table.len(), 14);
    assert_eq!(
        table[0],
        json!({"name": "pvc-1", "required_bytes": 4096, "access_type": "mount", "fs_type": "xfs",
            "access_mode": "SINGLE_NODE_WRITER", "source_snapshot_id": "snap-1"})
    );
    assert_eq!(
        table[2],
        json!({"volume_id": "vol-1", "node_id": "n1", "readonly": true})
    );
}

#[test]
fn a_power_cut_is_named_and_no_other_value() {
    for (value, expected) in [("powercut", Some("powercut")), (SECRET, None)] {
        let parameters = BTreeMap::from([(CONSISTENCY.to_owned(), value.to_owned())]);
        let snapshot = json(&csi::CreateSnapshotRequest {
            parameters: parameters.clone(),
            ..Default::default()
        });
        let group = json(&csi::CreateVolumeGroupSnapshotRequest {
            parameters,
            ..Default::default()
        });
        for shown in [snapshot, group] {
            assert_eq!(shown.get("consistency").and_then(Value::as_str), expected);
        }
    }
}
