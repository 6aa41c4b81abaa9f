//! The tables of snapshots, groups and changed blocks.

use hostloop_proto::csi;
use hostloop_test::client::map;
use hostloop_test::requests;

use super::bench::{Bench, secrets};
use super::codes::*;
use super::create::on_node;
use super::strings::{foreign, missing};

pub(crate) async fn snapshots(bench: &mut Bench) {
    let known = bench.known.clone();
    let (idle, snapshot) = (&known.idle[..], &known.snapshot[..]);
    let create = |source: &str, name: &str| csi::CreateSnapshotRequest {
        secrets: secrets(),
        ..requests::snapshot(name, source)
    };
    let of = |source: &str| create(source, "hostile");
    bench.names(|name| create(idle, name)).await;
    bench.ids(idle, of, MISSING).await;
    let unknown = csi::CreateSnapshotRequest {
        parameters: map(&[("unknown", "x")]),
        ..of(idle)
    };
    let topology = csi::CreateSnapshotRequest {
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![on_node("elsewhere")],
            preferred: Vec::new(),
        }),
        ..of(idle)
    };
    let taken = create(&known.attached, "snapshot-idle");
    let rows = [
        ("a missing source", of(&missing(idle)), NOT_FOUND),
        ("another node's volume", of(&foreign(idle)), FOREIGN),
        ("a name taken by another volume's", taken, EXISTS),
        ("an unknown parameter", unknown, INVALID),
        ("another node's topology", topology, EXHAUSTED),
    ];
    bench.refuse_all(rows).await;

    let delete = |id: &str| csi::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        secrets: secrets(),
    };
    let get = |id: &str| csi::GetSnapshotRequest {
        snapshot_id: id.to_owned(),
        secrets: secrets(),
    };
    bench.ids(snapshot, delete, OK).await;
    bench.ids(snapshot, get, MISSING).await;
    let (missing, elsewhere) = (&missing(snapshot), &foreign(snapshot));
    let of_a_group = [PRECONDITION, INVALID].concat();
    let rows = [
        ("a missing snapshot", delete(missing), OK),
        ("another node's snapshot", delete(elsewhere), FOREIGN),
        ("a member", delete(&known.members[0]), &of_a_group[..]),
    ];
    bench.refuse_all(rows).await;
    let rows = [
        ("a missing snapshot", get(missing), NOT_FOUND),
        ("another node's snapshot", get(elsewhere), FOREIGN),
    ];
    bench.refuse_all(rows).await;
}

pub(crate) async fn groups(bench: &mut Bench) {
    let known = bench.known.clone();
    let (idle, group) = (&known.idle[..], &known.group[..]);
    let create = |name: &str, sources: &[&str]| csi::CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: sources.iter().map(|s| (*s).to_owned()).collect(),
        secrets: secrets(),
        ..Default::default()
    };
    let of = |sources: &[&str]| create("hostile", sources);
    bench.names(|name| create(name, &[idle])).await;
    bench.not_ids(idle, |id| of(&[idle, id]), MISSING).await;
    let many: Vec<String> = (0..10_000).map(|n| format!("vol-{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let raw = of(&[&known.used, &known.block]);
    let elsewhere = of(&[idle, &foreign(idle)]);
    let rows = [
        ("no source", of(&[]), INVALID),
        ("an empty source", of(&[idle, ""]), MISSING),
        ("a source twice", of(&[idle, idle]), INVALID),
        ("ten thousand sources", of(&many), MISSING),
        ("another node's volume", elsewhere, FOREIGN),
        ("a raw block volume in use", raw, PRECONDITION),
    ];
    bench.refuse_all(rows).await;

    let delete = |id: &str, members: &[&str]| csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: members.iter().map(|s| (*s).to_owned()).collect(),
        secrets: secrets(),
    };
    let get = |id: &str, members: &[&str]| csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: members.iter().map(|s| (*s).to_owned()).collect(),
        secrets: secrets(),
    };
    bench.ids(idle, |id| delete(id, &[]), OK).await;
    bench.ids(idle, |id| get(id, &[]), MISSING).await;
    bench
        .not_ids(idle, |id| delete(group, &[id]), MISSING)
        .await;
    let member = |id: &str| get(group, &[id]);
    bench.not_ids(idle, member, MISSING).await;
    let (missing, elsewhere) = (&missing(group), &foreign(group));
    let half = &known.members[0][..];
    let members = known.members.iter().chain([&known.snapshot]);
    let more: Vec<&str> = members.map(String::as_str).collect();
    let rows = [
        ("a missing group", delete(missing, &[]), OK),
        ("another node's group", delete(elsewhere, &[]), FOREIGN),
        ("half of its members", delete(group, &[half]), INVALID),
        ("one more member", delete(group, &more), INVALID),
    ];
    bench.refuse_all(rows).await;
    let rows = [
        ("a missing group", get(missing, &[]), NOT_FOUND),
        ("one more member", get(group, &more), INVALID),
    ];
    bench.refuse_all(rows).await;
}

pub(crate) async fn metadata(bench: &mut Bench) {
    let known = bench.known.clone();
    let snapshot = &known.snapshot[..];
    let allocated = |id: &str, starting_offset, max_results| csi::GetMetadataAllocatedRequest {
        snapshot_id: id.to_owned(),
        starting_offset,
        max_results,
        secrets: secrets(),
    };
    let delta = |base: &str, target: &str, starting_offset| csi::GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        starting_offset,
        max_results: 0,
        secrets: secrets(),
    };
    let of = |id: &str| allocated(id, 0, 0);
    bench.ids(snapshot, of, MISSING).await;
    bench
        .ids(snapshot, |id| delta(id, snapshot, 0), MISSING)
        .await;
    let target = |id: &str| delta(snapshot, id, 0);
    bench.ids(snapshot, target, MISSING).await;
    for offset in [-1, i64::MIN, i64::MAX, 1 << 40] {
        let what = &format!("offset {offset}");
        bench
            .refuse(what, allocated(snapshot, offset, 0), BAD_RANGE)
            .await;
        bench
            .refuse(what, delta(snapshot, snapshot, offset), BAD_RANGE)
            .await;
    }
    bench
        .refuse(
            "negative max_results",
            allocated(snapshot, 0, -1),
            BAD_RANGE,
        )
        .await;
    bench
        .refuse(
            "snapshots of two volumes",
            target(&known.other_snapshot),
            INVALID,
        )
        .await;
}
