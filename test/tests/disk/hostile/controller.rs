//! The Controller service's table, but for CreateVolume.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::client::{map, mounted};
use hostloop_test::driver::NODE;
use tonic::Code;

use super::bench::Bench;
use super::create::{FOREIGN, INVALID, MISSING, not_capabilities, range};
use super::strings::{foreign, missing, not_ids, not_tokens};

/// What names a volume and nothing else.
pub(crate) async fn volumes(bench: &mut Bench) {
    let idle = bench.known.idle.clone();
    let secrets = bench.secrets();
    let delete = |volume_id: &str| csi::DeleteVolumeRequest {
        volume_id: volume_id.to_owned(),
        secrets: secrets.clone(),
    };
    let get = |volume_id: &str| csi::ControllerGetVolumeRequest {
        volume_id: volume_id.to_owned(),
    };
    let health = |volume_id: &str| csi::ControllerGetVolumeHealthRequest {
        volume_id: volume_id.to_owned(),
        secrets: secrets.clone(),
    };
    let validate = |volume_id: &str| csi::ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.to_owned(),
        volume_capabilities: vec![mounted("ext4", Mode::SingleNodeWriter)],
        secrets: secrets.clone(),
        ..Default::default()
    };
    bench.refuse("no ID", delete(""), INVALID).await;
    bench.refuse("no ID", get(""), INVALID).await;
    bench.refuse("no ID", health(""), INVALID).await;
    bench.refuse("no ID", validate(""), INVALID).await;
    for (what, id) in not_ids(&idle) {
        // What is no ID of ours is nothing of ours: there is nothing left to delete.
        bench.refuse(what, delete(&id), &[Code::Ok]).await;
        bench.refuse(what, get(&id), MISSING).await;
        bench.refuse(what, health(&id), MISSING).await;
        bench.refuse(what, validate(&id), MISSING).await;
    }
    bench
        .refuse("a missing volume", delete(&missing(&idle)), &[Code::Ok])
        .await;
    // It may live on another node: never OK.
    bench
        .refuse("another node's volume", delete(&foreign(&idle)), FOREIGN)
        .await;
    bench
        .refuse("another node's volume", get(&foreign(&idle)), FOREIGN)
        .await;
    let used = bench.known.used.clone();
    bench
        .refuse(
            "a volume in use",
            delete(&used),
            &[Code::FailedPrecondition],
        )
        .await;
    let snapshot = bench.known.snapshot.clone();
    bench
        .refuse("a snapshot's ID", delete(&snapshot), &[Code::Ok])
        .await;
    let none = csi::ValidateVolumeCapabilitiesRequest {
        volume_capabilities: Vec::new(),
        ..validate(&idle)
    };
    bench.refuse("no capability", none, INVALID).await;
}

pub(crate) async fn publish(bench: &mut Bench) {
    let attached = bench.known.attached.clone();
    let secrets = bench.secrets();
    let publish = |volume_id: &str| csi::ControllerPublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        node_id: NODE.to_owned(),
        volume_capability: Some(mounted("ext4", Mode::SingleNodeMultiWriter)),
        secrets: secrets.clone(),
        ..Default::default()
    };
    let unpublish = |volume_id: &str, node: &str| csi::ControllerUnpublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        node_id: node.to_owned(),
        secrets: secrets.clone(),
    };
    bench.refuse("no ID", publish(""), INVALID).await;
    bench.refuse("no ID", unpublish("", NODE), INVALID).await;
    for (what, id) in not_ids(&attached) {
        bench.refuse(what, publish(&id), MISSING).await;
        // Nothing that is no volume of ours is published here.
        bench.refuse(what, unpublish(&id, NODE), &[Code::Ok]).await;
    }
    let at = |node: &str| csi::ControllerPublishVolumeRequest {
        node_id: node.to_owned(),
        ..publish(&attached)
    };
    bench.refuse("no node", at(""), INVALID).await;
    bench
        .refuse("another node", at("elsewhere"), &[Code::NotFound])
        .await;
    bench
        .refuse("a node that is a path", at("../../etc"), &[Code::NotFound])
        .await;
    let long = "n".repeat(100_000);
    bench
        .refuse("a node of many bytes", at(&long), MISSING)
        .await;
    let none = csi::ControllerPublishVolumeRequest {
        volume_capability: None,
        ..publish(&attached)
    };
    bench.refuse("no capability", none, INVALID).await;
    for (what, capability) in not_capabilities() {
        let request = csi::ControllerPublishVolumeRequest {
            volume_capability: Some(capability),
            ..publish(&attached)
        };
        bench.refuse(what, request, INVALID).await;
    }
    let read_only = csi::ControllerPublishVolumeRequest {
        readonly: true,
        ..publish(&attached)
    };
    bench
        .refuse("another readonly", read_only, &[Code::AlreadyExists])
        .await;
    bench
        .refuse(
            "another node's volume",
            publish(&foreign(&attached)),
            FOREIGN,
        )
        .await;
    bench
        .refuse(
            "another node",
            unpublish(&attached, "elsewhere"),
            &[Code::Ok],
        )
        .await;
}

pub(crate) async fn lists(bench: &mut Bench) {
    let secrets = bench.secrets();
    for (what, token) in not_tokens() {
        let starting_token = token.clone();
        let request = csi::ListVolumesRequest {
            max_entries: 1,
            starting_token,
        };
        bench.refuse(what, request, &[Code::Aborted]).await;
        let request = csi::ListSnapshotsRequest {
            starting_token: token.clone(),
            secrets: secrets.clone(),
            ..Default::default()
        };
        bench.refuse(what, request, &[Code::Aborted]).await;
        let request = csi::ControllerListVolumeHealthRequest {
            starting_token: token,
            secrets: secrets.clone(),
            ..Default::default()
        };
        bench.refuse(what, request, &[Code::Aborted]).await;
    }
    for max_entries in [-1, i32::MIN] {
        let what = format!("max_entries {max_entries}");
        let request = csi::ListVolumesRequest {
            max_entries,
            ..Default::default()
        };
        bench.refuse(&what, request, INVALID).await;
        let request = csi::ListSnapshotsRequest {
            max_entries,
            ..Default::default()
        };
        bench.refuse(&what, request, INVALID).await;
        let request = csi::ControllerListVolumeHealthRequest {
            max_entries,
            ..Default::default()
        };
        bench.refuse(&what, request, INVALID).await;
    }
    // The specification: a filter that matches nothing lists nothing.
    let (idle, snapshot) = (bench.known.idle.clone(), bench.known.snapshot.clone());
    for (what, id) in not_ids(&idle) {
        let request = csi::ListSnapshotsRequest {
            source_volume_id: id.clone(),
            ..Default::default()
        };
        lists_nothing(bench, what, request).await;
    }
    for (what, id) in not_ids(&snapshot) {
        let request = csi::ListSnapshotsRequest {
            snapshot_id: id.clone(),
            ..Default::default()
        };
        lists_nothing(bench, what, request).await;
    }
}

async fn lists_nothing(bench: &mut Bench, what: &str, request: csi::ListSnapshotsRequest) {
    let answer = bench.take(what, request).await.unwrap_or_default();
    assert_eq!(answer.entries, [], "{what} matches no snapshot");
}

pub(crate) async fn expand_and_modify(bench: &mut Bench) {
    let idle = bench.known.idle.clone();
    let secrets = bench.secrets();
    let expand = |volume_id: &str, capacity_range| csi::ControllerExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        capacity_range,
        secrets: secrets.clone(),
        volume_capability: None,
    };
    let larger = range(64 << 20, 0);
    bench.refuse("no ID", expand("", larger), INVALID).await;
    bench.refuse("no range", expand(&idle, None), INVALID).await;
    bench
        .refuse("a negative size", expand(&idle, range(-1, 0)), INVALID)
        .await;
    bench
        .refuse("a negative limit", expand(&idle, range(0, -1)), INVALID)
        .await;
    bench
        .refuse(
            "a limit below the size",
            expand(&idle, range(2, 1)),
            INVALID,
        )
        .await;
    let too_large = [Code::OutOfRange];
    bench
        .refuse(
            "the largest size",
            expand(&idle, range(i64::MAX, 0)),
            &too_large,
        )
        .await;
    let codes = [Code::OutOfRange];
    bench
        .refuse(
            "a limit below what it has",
            expand(&idle, range(0, 4096)),
            &codes,
        )
        .await;
    let modify = |volume_id: &str, key: &str, value: &str| csi::ControllerModifyVolumeRequest {
        volume_id: volume_id.to_owned(),
        secrets: secrets.clone(),
        mutable_parameters: map(&[(key, value)]),
    };
    bench
        .refuse("no ID", modify("", "discard", "true"), INVALID)
        .await;
    for (key, value) in [
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
    ] {
        let request = modify(&idle, key, value);
        bench
            .refuse(&format!("{key:?}={value:?}"), request, INVALID)
            .await;
    }
    for (what, id) in not_ids(&idle) {
        bench.refuse(what, expand(&id, larger), MISSING).await;
        bench
            .refuse(what, modify(&id, "discard", "true"), MISSING)
            .await;
    }
    bench
        .refuse(
            "another node's volume",
            expand(&foreign(&idle), larger),
            FOREIGN,
        )
        .await;
    bench
        .refuse(
            "another node's volume",
            modify(&foreign(&idle), "discard", "true"),
            FOREIGN,
        )
        .await;
}

pub(crate) async fn capacity(bench: &mut Bench) {
    let ask = |pairs: &[(&str, &str)]| csi::GetCapacityRequest {
        parameters: map(pairs),
        ..Default::default()
    };
    for (key, value) in [("provisioning", "maybe"), ("unknown", "x")] {
        bench
            .refuse(&format!("{key}={value}"), ask(&[(key, value)]), INVALID)
            .await;
    }
    // A class may name a pool that only other nodes have.
    let nowhere = bench.take("pool=nowhere", ask(&[("pool", "nowhere")]));
    let available = nowhere.await.map(|a| a.available_capacity);
    assert_eq!(available, Some(0), "nothing can be promised there");
    for (what, capability) in not_capabilities() {
        let request = csi::GetCapacityRequest {
            volume_capabilities: vec![capability],
            ..Default::default()
        };
        bench.refuse(what, request, INVALID).await;
    }
    let elsewhere = csi::GetCapacityRequest {
        accessible_topology: Some(csi::Topology {
            segments: map(&[("topology.hostloop.csi.dev/node", "elsewhere")]),
        }),
        ..Default::default()
    };
    let answer = bench.take("another node's capacity", elsewhere).await;
    let available = answer.map(|a| a.available_capacity);
    assert_eq!(
        available,
        Some(0),
        "nothing of another node's can be promised here"
    );
}
