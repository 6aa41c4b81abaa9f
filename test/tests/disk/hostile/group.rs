//! The tables of snapshots, groups and changed blocks.

use hostloop_proto::csi;
use hostloop_test::client::map;
use tonic::Code;

use super::bench::Bench;
use super::create::{FOREIGN, INVALID, MISSING};
use super::strings::{foreign, missing, not_ids, not_names};

pub(crate) async fn snapshots(bench: &mut Bench) {
    let (idle, snapshot) = (bench.known.idle.clone(), bench.known.snapshot.clone());
    let secrets = bench.secrets();
    let create = |source: &str, name: &str| csi::CreateSnapshotRequest {
        source_volume_id: source.to_owned(),
        name: name.to_owned(),
        secrets: secrets.clone(),
        ..Default::default()
    };
    let delete = |id: &str| csi::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        secrets: secrets.clone(),
    };
    let get = |id: &str| csi::GetSnapshotRequest {
        snapshot_id: id.to_owned(),
        secrets: secrets.clone(),
    };
    bench
        .refuse("no source", create("", "hostile"), INVALID)
        .await;
    for (what, name) in not_names() {
        bench.refuse(what, create(&idle, &name), INVALID).await;
    }
    for (what, id) in not_ids(&idle) {
        bench
            .refuse(
                &format!("{what} as source"),
                create(&id, "hostile"),
                MISSING,
            )
            .await;
    }
    bench
        .refuse(
            "a missing source",
            create(&missing(&idle), "hostile"),
            &[Code::NotFound],
        )
        .await;
    bench
        .refuse(
            "another node's volume",
            create(&foreign(&idle), "hostile"),
            FOREIGN,
        )
        .await;
    let attached = bench.known.attached.clone();
    let taken = create(&attached, "snapshot-idle");
    bench
        .refuse(
            "a name taken by another volume's",
            taken,
            &[Code::AlreadyExists],
        )
        .await;
    let unknown = csi::CreateSnapshotRequest {
        parameters: map(&[("unknown", "x")]),
        ..create(&idle, "hostile")
    };
    bench.refuse("an unknown parameter", unknown, INVALID).await;
    let elsewhere = csi::CreateSnapshotRequest {
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![csi::Topology {
                segments: map(&[("topology.hostloop.csi.dev/node", "elsewhere")]),
            }],
            preferred: Vec::new(),
        }),
        ..create(&idle, "hostile")
    };
    bench
        .refuse(
            "another node's topology",
            elsewhere,
            &[Code::ResourceExhausted],
        )
        .await;
    bench.refuse("no ID", delete(""), INVALID).await;
    bench.refuse("no ID", get(""), INVALID).await;
    for (what, id) in not_ids(&snapshot) {
        bench.refuse(what, delete(&id), &[Code::Ok]).await;
        bench.refuse(what, get(&id), MISSING).await;
    }
    bench
        .refuse(
            "a missing snapshot",
            delete(&missing(&snapshot)),
            &[Code::Ok],
        )
        .await;
    bench
        .refuse(
            "a missing snapshot",
            get(&missing(&snapshot)),
            &[Code::NotFound],
        )
        .await;
    bench
        .refuse(
            "another node's snapshot",
            delete(&foreign(&snapshot)),
            FOREIGN,
        )
        .await;
    bench
        .refuse("another node's snapshot", get(&foreign(&snapshot)), FOREIGN)
        .await;
    let member = bench.known.members[0].clone();
    let codes = [Code::FailedPrecondition, Code::InvalidArgument];
    bench
        .refuse("a snapshot of a group", delete(&member), &codes)
        .await;
}

pub(crate) async fn groups(bench: &mut Bench) {
    let known = &bench.known;
    let (idle, block) = (known.idle.clone(), known.block.clone());
    let (group, members) = (known.group.clone(), known.members.clone());
    let (used, snapshot) = (known.used.clone(), known.snapshot.clone());
    let secrets = bench.secrets();
    let create = |name: &str, sources: &[&str]| csi::CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: sources.iter().map(|s| (*s).to_owned()).collect(),
        secrets: secrets.clone(),
        ..Default::default()
    };
    let delete = |id: &str, members: &[String]| csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: members.to_vec(),
        secrets: secrets.clone(),
    };
    let get = |id: &str, members: &[String]| csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: members.to_vec(),
        secrets: secrets.clone(),
    };
    for (what, name) in not_names() {
        bench.refuse(what, create(&name, &[&idle]), INVALID).await;
    }
    bench
        .refuse("no source", create("hostile", &[]), INVALID)
        .await;
    bench
        .refuse("an empty source", create("hostile", &[&idle, ""]), MISSING)
        .await;
    bench
        .refuse(
            "a source twice",
            create("hostile", &[&idle, &idle]),
            INVALID,
        )
        .await;
    for (what, id) in not_ids(&idle) {
        bench
            .refuse(what, create("hostile", &[&idle, &id]), MISSING)
            .await;
        bench.refuse(what, delete(&id, &[]), &[Code::Ok]).await;
        bench.refuse(what, get(&id, &[]), MISSING).await;
        let wrong = [id.clone()];
        bench
            .refuse(
                &format!("{what} as a member"),
                delete(&group, &wrong),
                MISSING,
            )
            .await;
        bench
            .refuse(&format!("{what} as a member"), get(&group, &wrong), MISSING)
            .await;
    }
    let many: Vec<String> = (0..10_000).map(|n| format!("vol-{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    bench
        .refuse("ten thousand sources", create("hostile", &many), MISSING)
        .await;
    let foreign_volume = foreign(&idle);
    bench
        .refuse(
            "another node's volume",
            create("hostile", &[&idle, &foreign_volume]),
            FOREIGN,
        )
        .await;
    let raw = create("hostile", &[&used, &block]);
    bench
        .refuse(
            "a raw block volume in use",
            raw,
            &[Code::FailedPrecondition],
        )
        .await;
    bench.refuse("no ID", delete("", &[]), INVALID).await;
    bench.refuse("no ID", get("", &[]), INVALID).await;
    bench
        .refuse(
            "a missing group",
            delete(&missing(&group), &[]),
            &[Code::Ok],
        )
        .await;
    bench
        .refuse(
            "a missing group",
            get(&missing(&group), &[]),
            &[Code::NotFound],
        )
        .await;
    bench
        .refuse(
            "another node's group",
            delete(&foreign(&group), &[]),
            FOREIGN,
        )
        .await;
    let half = [members[0].clone()];
    bench
        .refuse("half of its members", delete(&group, &half), INVALID)
        .await;
    let more = [members.clone(), vec![snapshot]].concat();
    bench
        .refuse("one more than its members", delete(&group, &more), INVALID)
        .await;
    bench
        .refuse("one more than its members", get(&group, &more), INVALID)
        .await;
}

pub(crate) async fn metadata(bench: &mut Bench) {
    let (snapshot, other) = (
        bench.known.snapshot.clone(),
        bench.known.other_snapshot.clone(),
    );
    let secrets = bench.secrets();
    let allocated = |id: &str, starting_offset, max_results| csi::GetMetadataAllocatedRequest {
        snapshot_id: id.to_owned(),
        starting_offset,
        max_results,
        secrets: secrets.clone(),
    };
    let delta = |base: &str, target: &str, starting_offset| csi::GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        starting_offset,
        max_results: 0,
        secrets: secrets.clone(),
    };
    let range = [Code::OutOfRange, Code::InvalidArgument];
    bench.refuse("no ID", allocated("", 0, 0), INVALID).await;
    bench
        .refuse("no base", delta("", &snapshot, 0), INVALID)
        .await;
    bench
        .refuse("no target", delta(&snapshot, "", 0), INVALID)
        .await;
    for offset in [-1, i64::MIN, i64::MAX, 1 << 40] {
        let what = format!("offset {offset}");
        bench
            .refuse(&what, allocated(&snapshot, offset, 0), &range)
            .await;
        bench
            .refuse(&what, delta(&snapshot, &snapshot, offset), &range)
            .await;
    }
    bench
        .refuse("negative max_results", allocated(&snapshot, 0, -1), &range)
        .await;
    for (what, id) in not_ids(&snapshot) {
        bench.refuse(what, allocated(&id, 0, 0), MISSING).await;
        bench.refuse(what, delta(&id, &snapshot, 0), MISSING).await;
        bench.refuse(what, delta(&snapshot, &id, 0), MISSING).await;
    }
    bench
        .refuse(
            "snapshots of two volumes",
            delta(&snapshot, &other, 0),
            INVALID,
        )
        .await;
}
