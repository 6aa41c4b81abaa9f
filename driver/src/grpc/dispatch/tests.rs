use std::collections::{BTreeMap, BTreeSet};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::*;
use crate::grpc::operation_locks::Usage;
use crate::storage::{Provisioning, Reach};
use crate::testkit::{Site, from, new, of_volume, pairs};

mod copies;
mod faults;
mod refusals;

fn map(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("key".to_owned(), value.to_owned())])
}

fn keys(request: &impl Call, pools: &Pools) -> BTreeSet<String> {
    let word = |hold: Hold| match hold.usage {
        Usage::Change => hold.key.to_string(),
        Usage::Record => format!("record of {}", hold.key),
        Usage::Mount => format!("mount of {}", hold.key),
        Usage::Copy => format!("copy of {}", hold.key),
    };
    request.holds(pools).into_iter().map(word).collect()
}

fn volume(id: &str) -> BTreeSet<String> {
    BTreeSet::from([format!("volume {id}")])
}

#[test]
fn calls_on_a_volume_hold_it() {
    let site = Site::fake(&["a"]);
    macro_rules! on_a_volume {
        ($($request:ident)+) => {
            $(
                let request = csi::$request { volume_id: "v".into(), ..Default::default() };
                let held = keys(&request, site.pools()).into_iter();
                let held = held.map(|key| {
                    let key = key.trim_start_matches("record of ");
                    key.trim_start_matches("mount of ").to_owned()
                });
                assert_eq!(BTreeSet::from_iter(held), volume("v"), "{}", stringify!($request));
                assert_eq!(request.about(), "v");
                let other = csi::$request { volume_id: "w".into(), ..Default::default() };
                assert!(request.fingerprint() != other.fingerprint());
            )+
        };
    }
    on_a_volume! {
        DeleteVolumeRequest ControllerPublishVolumeRequest ControllerUnpublishVolumeRequest
        ControllerExpandVolumeRequest ControllerModifyVolumeRequest NodeStageVolumeRequest
        NodeUnstageVolumeRequest NodePublishVolumeRequest NodeUnpublishVolumeRequest
        NodeExpandVolumeRequest
    }
}

#[test]
fn calls_that_free_something() {
    macro_rules! freed {
        ($request:ident $id:expr) => {
            csi::$request {
                volume_id: $id.into(),
                ..Default::default()
            }
            .frees()
        };
    }
    let volume = || Some(Freed::Volume("v".to_owned()));
    let inline = format!("csi-{}", "0".repeat(64));
    for (what, found, expected) in [
        ("delete", freed!(DeleteVolumeRequest "v"), Some(Freed::Room)),
        (
            "snapshot",
            csi::DeleteSnapshotRequest::default().frees(),
            Some(Freed::Room),
        ),
        (
            "group",
            csi::DeleteVolumeGroupSnapshotRequest::default().frees(),
            Some(Freed::Room),
        ),
        (
            "modify",
            freed!(ControllerModifyVolumeRequest "v"),
            Some(Freed::Room),
        ),
        (
            "detach",
            freed!(ControllerUnpublishVolumeRequest "v"),
            volume(),
        ),
        (
            "unpublish",
            freed!(NodeUnpublishVolumeRequest "v"),
            volume(),
        ),
        (
            "inline",
            freed!(NodeUnpublishVolumeRequest inline),
            Some(Freed::Room),
        ),
        ("unstage", freed!(NodeUnstageVolumeRequest "v"), volume()),
        ("stage", freed!(NodeStageVolumeRequest "v"), None),
        ("create", csi::CreateVolumeRequest::default().frees(), None),
        ("question", csi::GetCapacityRequest::default().frees(), None),
    ] {
        assert_eq!(found, expected, "{what}");
    }
}

/// Its user may have discarded blocks of a thick volume, and to allocate them again may take long.
#[test]
fn calls_that_mount_a_thick_volume_have_threads_of_their_own() {
    let site = Site::fake(&["a"]);
    let mut thick = new("thick");
    thick.settings.provisioning = Provisioning::Thick;
    for (volume, expected) in [(new("thin"), Work::Change), (thick, Work::StageThick)] {
        let volume_id = site.create(volume).id.to_string();
        let stage = csi::NodeStageVolumeRequest {
            volume_id: volume_id.clone(),
            ..Default::default()
        };
        let expand = csi::NodeExpandVolumeRequest {
            volume_id: volume_id.clone(),
            ..Default::default()
        };
        let publish = csi::NodePublishVolumeRequest {
            volume_id,
            ..Default::default()
        };
        let works = [stage.work(site.pools()), expand.work(site.pools())];
        assert_eq!(works, [expected; 2]);
        assert_eq!(
            publish.work(site.pools()),
            Work::Change,
            "it allocates nothing"
        );
    }
}

/// The publication of a shared volume mounts it on its own node, and the end of the last one unmounts
/// it. Neither runs beside a copy, which may freeze it.
#[test]
fn attachments_of_shared_volumes_mount_and_those_of_others_are_records() {
    let site = Site::fake(&["a"]);
    let mut shared = new("shared");
    shared.reach = Reach::Kernel;
    let mut thick = new("thick");
    thick.reach = Reach::Kernel;
    thick.settings.provisioning = Provisioning::Thick;
    // Volume → the work to attach and to detach it, and how it is held
    for (volume, attach, detach, usage) in [
        (new("own"), Work::Change, Work::Leave, "record"),
        (shared, Work::Change, Work::Unstage, "mount"),
        (thick, Work::StageThick, Work::Unstage, "mount"),
    ] {
        let volume_id = site.create(volume).id.to_string();
        let held = BTreeSet::from([format!("{usage} of volume {volume_id}")]);
        let publish = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            ..Default::default()
        };
        let unpublish = csi::ControllerUnpublishVolumeRequest {
            volume_id,
            ..Default::default()
        };
        let works = [publish.work(site.pools()), unpublish.work(site.pools())];
        assert_eq!(works, [attach, detach]);
        assert_eq!(keys(&publish, site.pools()), held);
        assert_eq!(keys(&unpublish, site.pools()), held);
    }
}

/// Within a pool with reflinks, a clone copies no bytes.
#[test]
fn a_clone_within_the_pool_that_its_class_names_is_no_copy() {
    let mut site: Site = Site::new(&["a=DIR/a", "b=DIR/b"]);
    site.kernel.set_reflinks(true);
    site.open();
    let pools = site.pools();
    let source = pools
        .create_volume(&site.named("b"), new("source"))
        .unwrap();
    for (class, expected) in [
        ("pool=b", Work::Clone),
        ("kind=b", Work::Clone),
        ("kind=a", Work::Copy),
        ("", Work::Copy),
    ] {
        let request = csi::CreateVolumeRequest {
            parameters: pairs(class),
            volume_content_source: from(of_volume(source.id)),
            ..Default::default()
        };
        assert_eq!(request.work(pools), expected, "{class}");
    }
}

/// A repeated call does not wait for the copies of others.
#[test]
fn a_repeated_call_copies_and_allocates_nothing() {
    let mut site: Site = Site::new(&["a=DIR/a"]);
    site.kernel.set_reflinks(false);
    site.open();
    let pools = site.pools();
    let source = pools
        .create_volume(&site.named("a"), new("source"))
        .unwrap();
    let id = source.id.to_string();
    let copy = |name: &str| csi::CreateVolumeRequest {
        name: name.to_owned(),
        volume_content_source: from(of_volume(source.id)),
        ..Default::default()
    };
    assert_eq!(copy("copy").work(pools), Work::Copy);
    assert_eq!(copy("source").work(pools), Work::Change);
    let mut gone = copy("copy");
    let last = if id.ends_with('0') { '1' } else { '0' };
    let volume_id = format!("{}{last}", &id[..id.len() - 1]);
    gone.volume_content_source = from(Type::Volume(VolumeSource { volume_id }));
    assert_eq!(gone.work(pools), Work::Change);
    let snapshot = || csi::CreateSnapshotRequest {
        name: "snapshot".to_owned(),
        source_volume_id: id.clone(),
        ..Default::default()
    };
    assert_eq!(snapshot().work(pools), Work::Copy);
    pools
        .create_snapshot(&source.id, "snapshot", &BTreeMap::new())
        .unwrap();
    assert_eq!(snapshot().work(pools), Work::Change);
    let modified = || csi::ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: pairs("provisioning=thick"),
        ..Default::default()
    };
    let expanded = |required_bytes: u64| csi::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: required_bytes.try_into().unwrap(),
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    assert_eq!(modified().work(pools), Work::Allocate);
    assert_eq!(
        expanded(2 * source.capacity_bytes).work(pools),
        Work::Change
    );
    pools
        .update_volume(&source.id, |volume| {
            volume.settings.provisioning = Provisioning::Thick;
        })
        .unwrap();
    assert_eq!(modified().work(pools), Work::Change);
    assert_eq!(
        expanded(2 * source.capacity_bytes).work(pools),
        Work::Allocate
    );
    assert_eq!(expanded(source.capacity_bytes).work(pools), Work::Change);
}

#[test]
fn questions_hold_nothing() {
    let site = Site::fake(&["a"]);
    macro_rules! questions {
        ($($request:ident)+) => {
            $(assert_eq!(csi::$request::default().holds(site.pools()), [], "{}", stringify!($request));)+
        };
    }
    questions! {
        ValidateVolumeCapabilitiesRequest ListVolumesRequest ControllerListVolumeHealthRequest
        ControllerGetVolumeHealthRequest GetCapacityRequest ControllerGetCapabilitiesRequest
        ListSnapshotsRequest GetSnapshotRequest ControllerGetVolumeRequest
        GroupControllerGetCapabilitiesRequest GetVolumeGroupSnapshotRequest
        GetMetadataAllocatedRequest GetMetadataDeltaRequest NodeGetVolumeStatsRequest
        NodeGetVolumeHealthRequest NodeGetStorageHealthRequest NodeGetCapabilitiesRequest
        NodeGetInfoRequest
    }
}

#[test]
fn a_new_volume_holds_its_name_and_its_source() {
    let site = Site::fake(&["a"]);
    let from = |source: Option<Type>| csi::CreateVolumeRequest {
        name: "a/\n".into(),
        volume_content_source: Some(csi::VolumeContentSource { r#type: source }),
        ..Default::default()
    };
    let name = "volume \"a/\\n\"".to_owned();
    let snapshot = Type::Snapshot(SnapshotSource {
        snapshot_id: "s".into(),
    });
    let source = Type::Volume(VolumeSource {
        volume_id: "v".into(),
    });
    let empty = csi::CreateVolumeRequest {
        name: "a/\n".into(),
        ..Default::default()
    };
    for (request, held) in [
        (empty, None),
        (from(None), None),
        (from(Some(snapshot)), Some("copy of snapshot s")),
        (from(Some(source)), Some("copy of volume v")),
    ] {
        let held = held.map(str::to_owned).into_iter();
        assert_eq!(
            keys(&request, site.pools()),
            held.chain([name.clone()]).collect()
        );
        assert_eq!(request.about(), "a/\n");
    }
}

#[test]
fn snapshots_and_groups_hold_their_members() {
    let site = Site::fake(&["a"]);
    let snapshot = csi::CreateSnapshotRequest {
        name: "s".into(),
        source_volume_id: "v".into(),
        ..Default::default()
    };
    let held = ["snapshot \"s\"", "copy of volume v"].map(str::to_owned);
    assert_eq!(keys(&snapshot, site.pools()), held.into());
    let delete = csi::DeleteSnapshotRequest {
        snapshot_id: "s".into(),
        ..Default::default()
    };
    assert_eq!(
        keys(&delete, site.pools()),
        ["snapshot s".to_owned()].into()
    );

    let group = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids: vec!["v".into(), "w".into()],
        ..Default::default()
    };
    let held = [
        "group snapshot \"g\"",
        "copy of volume v",
        "copy of volume w",
    ]
    .map(str::to_owned);
    assert_eq!(keys(&group, site.pools()), held.into());
    let delete = csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: "g".into(),
        snapshot_ids: vec!["s".into(), "t".into()],
        ..Default::default()
    };
    let held = ["group snapshot g", "snapshot s", "snapshot t"].map(str::to_owned);
    assert_eq!(keys(&delete, site.pools()), held.into());
}

/// Two requests that differ only in their secrets are equal. This test covers every request with
/// secrets and locks, according to the protocol's own list.
#[test]
fn secrets_do_not_make_another_request() {
    let mut tested = BTreeSet::new();
    macro_rules! same_but_for_secrets {
        ($($request:ident)+) => {
            $(
                let one = csi::$request { secrets: map("a"), ..Default::default() };
                let other = csi::$request { secrets: map("b"), ..Default::default() };
                assert!(one.fingerprint() == other.fingerprint(), "{}", stringify!($request));
                tested.insert(concat!("csi.v1.", stringify!($request)));
            )+
        };
    }
    same_but_for_secrets! {
        CreateVolumeRequest DeleteVolumeRequest ControllerPublishVolumeRequest
        ControllerUnpublishVolumeRequest CreateSnapshotRequest DeleteSnapshotRequest
        ControllerExpandVolumeRequest ControllerModifyVolumeRequest
        CreateVolumeGroupSnapshotRequest DeleteVolumeGroupSnapshotRequest NodeStageVolumeRequest
        NodePublishVolumeRequest NodeExpandVolumeRequest
    }
    let only_ask = [
        "ValidateVolumeCapabilitiesRequest",
        "ControllerListVolumeHealthRequest",
        "ControllerGetVolumeHealthRequest",
        "ListSnapshotsRequest",
        "GetSnapshotRequest",
        "GetVolumeGroupSnapshotRequest",
        "GetMetadataAllocatedRequest",
        "GetMetadataDeltaRequest",
        "NodeGetStorageHealthRequest",
    ];
    let of_csi = hostloop_proto::SECRET_FIELDS
        .iter()
        .filter(|(message, _)| message.starts_with("csi.v1."));
    for (message, field) in of_csi {
        assert_eq!(*field, "secrets");
        let asks = only_ask.iter().any(|name| message.ends_with(name));
        assert!(asks || tested.contains(message), "{message}");
    }
}

#[test]
fn volume_context_does_not_make_another_request_but_everything_else_does() {
    let stage = |context: &str, path: &str| csi::NodeStageVolumeRequest {
        volume_context: map(context),
        staging_target_path: path.into(),
        ..Default::default()
    };
    assert!(stage("a", "/x").fingerprint() == stage("b", "/x").fingerprint());
    assert!(stage("a", "/x").fingerprint() != stage("a", "/y").fingerprint());
    let publish = |context: &str, readonly| csi::NodePublishVolumeRequest {
        volume_context: map(context),
        readonly,
        ..Default::default()
    };
    assert!(publish("a", true).fingerprint() == publish("b", true).fingerprint());
    assert!(publish("a", true).fingerprint() != publish("a", false).fingerprint());
    let controller = |context: &str, node: &str| csi::ControllerPublishVolumeRequest {
        volume_context: map(context),
        node_id: node.into(),
        ..Default::default()
    };
    assert!(controller("a", "n").fingerprint() == controller("b", "n").fingerprint());
    assert!(controller("a", "n").fingerprint() != controller("a", "m").fingerprint());
    let create = |parameters: &str| csi::CreateVolumeRequest {
        parameters: map(parameters),
        ..Default::default()
    };
    assert!(create("a").fingerprint() != create("b").fingerprint());
}
