//! The Controller service's table, but for CreateVolume.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::client::{map, mounted};
use hostloop_test::requests;

use super::bench::{Bench, secrets};
use super::codes::*;
use super::create::{on_node, range};
use super::strings::{foreign, missing, not_capabilities, not_ids, not_tokens};

/// Requests that identify a volume and have no other field to attack.
pub(crate) async fn volumes(bench: &mut Bench) {
    let known = bench.known.clone();
    let (idle, elsewhere) = (&known.idle, &foreign(&known.idle));
    let delete = |id: &str| csi::DeleteVolumeRequest {
        secrets: secrets(),
        ..requests::delete(id)
    };
    let get = |volume_id: &str| csi::ControllerGetVolumeRequest {
        volume_id: volume_id.to_owned(),
    };
    let health = |volume_id: &str| csi::ControllerGetVolumeHealthRequest {
        volume_id: volume_id.to_owned(),
        secrets: secrets(),
    };
    let validate = |volume_id: &str| csi::ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.to_owned(),
        volume_capabilities: vec![mounted("ext4", Mode::SingleNodeWriter)],
        secrets: secrets(),
        ..Default::default()
    };
    // The driver has no volume of such an ID: there is nothing left to delete.
    bench.ids(idle, delete, OK).await;
    bench.ids(idle, get, MISSING).await;
    bench.ids(idle, health, MISSING).await;
    bench.ids(idle, validate, MISSING).await;
    let rows = [
        ("a missing volume", delete(&missing(idle)), OK),
        // It may live on another node: never OK.
        ("another node's volume", delete(elsewhere), FOREIGN),
        ("a volume in use", delete(&known.used), PRECONDITION),
        ("a snapshot's ID", delete(&known.snapshot), OK),
    ];
    bench.refuse_all(rows).await;
    bench
        .refuse("another node's volume", get(elsewhere), FOREIGN)
        .await;
    let none = csi::ValidateVolumeCapabilitiesRequest {
        volume_capabilities: Vec::new(),
        ..validate(idle)
    };
    bench.refuse("no capability", none, INVALID).await;
}

pub(crate) async fn publish(bench: &mut Bench) {
    let attached = &bench.known.attached.clone();
    let publish = |volume_id: &str| csi::ControllerPublishVolumeRequest {
        volume_capability: Some(mounted("ext4", Mode::SingleNodeMultiWriter)),
        secrets: secrets(),
        ..requests::attach(volume_id)
    };
    let unpublish = |volume_id: &str| csi::ControllerUnpublishVolumeRequest {
        secrets: secrets(),
        ..requests::detach(volume_id)
    };
    bench.ids(attached, publish, MISSING).await;
    // The driver has no volume of such an ID: it is published nowhere.
    bench.ids(attached, unpublish, OK).await;
    let capability = |volume_capability| csi::ControllerPublishVolumeRequest {
        volume_capability,
        ..publish(attached)
    };
    bench.capabilities(capability).await;
    let at = |node: &str| csi::ControllerPublishVolumeRequest {
        node_id: node.to_owned(),
        ..publish(attached)
    };
    let read_only = csi::ControllerPublishVolumeRequest {
        readonly: true,
        ..publish(attached)
    };
    let elsewhere = publish(&foreign(attached));
    let rows = [
        ("no node", at(""), INVALID),
        ("another node", at("elsewhere"), NOT_FOUND),
        ("a node that is a path", at("../../etc"), NOT_FOUND),
        ("a node of many bytes", at(&"n".repeat(100_000)), MISSING),
        ("another readonly", read_only, EXISTS),
        ("another node's volume", elsewhere, FOREIGN),
    ];
    bench.refuse_all(rows).await;
    let elsewhere = csi::ControllerUnpublishVolumeRequest {
        node_id: "elsewhere".to_owned(),
        ..unpublish(attached)
    };
    bench.refuse("another node", elsewhere, OK).await;
}

pub(crate) async fn lists(bench: &mut Bench) {
    let volumes = |max_entries, token: &str| csi::ListVolumesRequest {
        max_entries,
        starting_token: token.to_owned(),
    };
    let snapshots = |max_entries, token: &str| csi::ListSnapshotsRequest {
        max_entries,
        starting_token: token.to_owned(),
        secrets: secrets(),
        ..Default::default()
    };
    let health = |max_entries, token: &str| csi::ControllerListVolumeHealthRequest {
        max_entries,
        starting_token: token.to_owned(),
        secrets: secrets(),
    };
    for (what, token) in not_tokens() {
        bench.refuse(what, volumes(1, &token), ABORTED).await;
        bench.refuse(what, snapshots(0, &token), ABORTED).await;
        bench.refuse(what, health(0, &token), ABORTED).await;
    }
    for least in [-1, i32::MIN] {
        let what = &format!("max_entries {least}");
        bench.refuse(what, volumes(least, ""), INVALID).await;
        bench.refuse(what, snapshots(least, ""), INVALID).await;
        bench.refuse(what, health(least, ""), INVALID).await;
    }
    // The specification: a filter that matches nothing lists nothing.
    let known = bench.known.clone();
    let sources = not_ids(&known.idle).into_iter().map(|(what, id)| {
        let request = csi::ListSnapshotsRequest {
            source_volume_id: id,
            ..Default::default()
        };
        (what, request)
    });
    let ids = not_ids(&known.snapshot).into_iter().map(|(what, id)| {
        let request = csi::ListSnapshotsRequest {
            snapshot_id: id,
            ..Default::default()
        };
        (what, request)
    });
    for (what, request) in sources.chain(ids) {
        let answer = bench.take(what, request).await.unwrap_or_default();
        assert_eq!(answer.entries, [], "{what} matches no snapshot");
    }
}

pub(crate) async fn expand_and_modify(bench: &mut Bench) {
    let idle = &bench.known.idle.clone();
    let expand = |volume_id: &str, capacity_range| csi::ControllerExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        capacity_range,
        secrets: secrets(),
        volume_capability: None,
    };
    let to = |required, limit| expand(idle, range(required, limit));
    let larger = |id: &str| expand(id, range(64 << 20, 0));
    let rows = [
        ("no range", expand(idle, None), INVALID),
        ("a negative size", to(-1, 0), INVALID),
        ("a negative limit", to(0, -1), INVALID),
        ("a limit below the size", to(2, 1), INVALID),
        ("the largest size", to(i64::MAX, 0), OUT_OF_RANGE),
        ("a limit below what it has", to(0, 4096), OUT_OF_RANGE),
        ("another node's volume", larger(&foreign(idle)), FOREIGN),
    ];
    bench.refuse_all(rows).await;
    bench.ids(idle, larger, MISSING).await;
    let modify = |volume_id: &str, key: &str, value: &str| csi::ControllerModifyVolumeRequest {
        volume_id: volume_id.to_owned(),
        secrets: secrets(),
        mutable_parameters: map(&[(key, value)]),
    };
    let pairs = [
        ("unknown", "x"),
        ("", ""),
        ("pool", "default"),
        ("mkfsOptions", "-F"),
        ("provisioning", "maybe"),
        ("discard", "\0"),
        ("directIO", ""),
        ("readAheadKiB", "-1"),
        ("readAheadKiB", "1; reboot"),
        ("readAheadKiB", "18446744073709551616"),
    ];
    bench
        .parameters(&pairs, |key, value| modify(idle, key, value))
        .await;
    let discard = |id: &str| modify(id, "discard", "true");
    bench.ids(idle, discard, MISSING).await;
    bench
        .refuse("another node's volume", discard(&foreign(idle)), FOREIGN)
        .await;
}

pub(crate) async fn capacity(bench: &mut Bench) {
    let ask = |key: &str, value: &str| csi::GetCapacityRequest {
        parameters: map(&[(key, value)]),
        ..Default::default()
    };
    bench
        .parameters(&[("provisioning", "maybe"), ("unknown", "x")], ask)
        .await;
    for (what, capability) in not_capabilities() {
        let request = csi::GetCapacityRequest {
            volume_capabilities: vec![capability],
            ..Default::default()
        };
        bench.refuse(what, request, INVALID).await;
    }
    let elsewhere = csi::GetCapacityRequest {
        accessible_topology: Some(on_node("elsewhere")),
        ..Default::default()
    };
    // A class may name a pool that only other nodes have.
    let nowhere = ("another node's pool", ask("pool", "nowhere"));
    for (what, request) in [nowhere, ("another node's capacity", elsewhere)] {
        let answer = bench.take(what, request).await;
        let available = answer.map(|a| a.available_capacity);
        assert_eq!(available, Some(0), "this node promises {what}");
    }
}
