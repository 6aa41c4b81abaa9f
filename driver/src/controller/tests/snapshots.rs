//! Snapshots and groups.

use hostloop_proto::csi;
use tonic::Code;

use super::bench::*;
use crate::controller::Result;

fn delete(bench: &Bench, id: &str) -> Result<()> {
    let request = csi::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    bench.controller.delete_snapshot(request).map(drop)
}

fn get(bench: &Bench, id: &str) -> Result<csi::Snapshot> {
    let request = csi::GetSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    Ok(bench.controller.get_snapshot(request)?.snapshot.unwrap())
}

fn list(bench: &Bench, snapshot: &str, source: &str) -> Vec<String> {
    let request = csi::ListSnapshotsRequest {
        snapshot_id: snapshot.to_owned(),
        source_volume_id: source.to_owned(),
        ..Default::default()
    };
    let response = bench.controller.list_snapshots(request).unwrap();
    let id = |e: csi::list_snapshots_response::Entry| e.snapshot.unwrap().snapshot_id;
    response.entries.into_iter().map(id).collect()
}

#[test]
fn a_snapshot_is_taken_once_and_outlives_its_volume() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    let snapshot = bench.snapshot("s", &a).unwrap();
    assert_eq!(bench.snapshot("s", &a).unwrap(), snapshot);
    assert_eq!(get(&bench, &snapshot.snapshot_id).unwrap(), snapshot);
    assert_eq!(snapshot.source_volume_id, a);
    assert_eq!(snapshot.size_bytes, 8 * MI);
    assert!(snapshot.ready_to_use && snapshot.creation_time.is_some());
    assert_eq!(snapshot.accessible_topology, [here()]);
    assert_code(bench.snapshot("s", &b), Code::AlreadyExists);

    bench.delete(&a).unwrap();
    assert_eq!(bench.snapshot("s", &a).unwrap(), snapshot);
    assert_code(bench.snapshot("t", &a), Code::NotFound);
    assert_eq!(
        list(&bench, "", &a),
        std::slice::from_ref(&snapshot.snapshot_id)
    );
    let id = &snapshot.snapshot_id;
    assert_code(bench.create_from("restored", of_snapshot(id)), Code::Ok);
    delete(&bench, id).unwrap();
    delete(&bench, id).unwrap();
    assert_code(get(&bench, id), Code::NotFound);
    assert_code(delete(&bench, &foreign(id)), Code::FailedPrecondition);
    assert_code(delete(&bench, "none"), Code::Ok);
    assert_field(delete(&bench, ""), "snapshot_id");
}

#[test]
fn requests_for_snapshots_are_judged() {
    let bench = Bench::new();
    let volume = bench.create("a");
    let create = |change: fn(&mut csi::CreateSnapshotRequest)| {
        let mut request = csi::CreateSnapshotRequest {
            name: "s".to_owned(),
            source_volume_id: volume.clone(),
            ..Default::default()
        };
        change(&mut request);
        let response = bench.controller.create_snapshot(request)?;
        Ok(response.snapshot.unwrap())
    };
    assert_field(create(|r| r.name.clear()), "name");
    assert_field(create(|r| r.source_volume_id.clear()), "source_volume_id");
    let unknown = create(|r| r.parameters = map(&[("x", "y")]));
    assert_eq!(field(unknown), "parameters[\"x\"]");
    assert_code(
        create(|r| r.source_volume_id = "none".into()),
        Code::NotFound,
    );
    let away = create(|r| r.accessibility_requirements = required(elsewhere()));
    assert_code(away, Code::ResourceExhausted);
    assert!(list(&bench, "", "").is_empty());
    // The answer omits a topology that the request names, and contains it otherwise.
    let named = create(|r| r.accessibility_requirements = required(here())).unwrap();
    assert!(named.accessible_topology.is_empty());
    let open = create(|r| {
        r.accessibility_requirements = Some(csi::TopologyRequirement {
            requisite: vec![elsewhere(), here()],
            preferred: vec![],
        });
    });
    assert_eq!(open.unwrap().accessible_topology, [here()]);
    let metadata = create(|r| {
        r.parameters = map(&[("csi.storage.k8s.io/volumesnapshot/name", "x")]);
    });
    assert_code(metadata, Code::Ok);
}

#[test]
fn lists_are_filtered() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    let a1 = bench.snapshot("a1", &a).unwrap().snapshot_id;
    let b1 = bench.snapshot("b1", &b).unwrap().snapshot_id;
    let a2 = bench.snapshot("a2", &a).unwrap().snapshot_id;
    let table: [(&str, &str, &[&String]); 10] = [
        ("", "", &[&a1, &b1, &a2]),
        ("", &a, &[&a1, &a2]),
        (&b1, "", &[&b1]),
        (&b1, &b, &[&b1]),
        (&b1, &a, &[]),
        ("none", "", &[]),
        ("", "none", &[]),
        (&foreign(&a1), "", &[]),
        ("", &foreign(&a), &[]),
        (&a, "", &[]),
    ];
    for (snapshot, source, expected) in table {
        let got = list(&bench, snapshot, source);
        assert_eq!(
            got.iter().collect::<Vec<_>>(),
            expected,
            "{snapshot} {source}"
        );
    }
}

fn group(bench: &Bench, name: &str, sources: &[&str]) -> Result<csi::VolumeGroupSnapshot> {
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: sources.iter().map(|s| s.to_string()).collect(),
        ..Default::default()
    };
    let response = bench.controller.create_volume_group_snapshot(request)?;
    Ok(response.group_snapshot.unwrap())
}

fn delete_group(bench: &Bench, id: &str, members: &[String]) -> Result<()> {
    let request = csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: members.to_vec(),
        ..Default::default()
    };
    bench
        .controller
        .delete_volume_group_snapshot(request)
        .map(drop)
}

fn get_group(bench: &Bench, id: &str, members: &[String]) -> Result<csi::VolumeGroupSnapshot> {
    let request = csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: members.to_vec(),
        ..Default::default()
    };
    let response = bench.controller.get_volume_group_snapshot(request)?;
    Ok(response.group_snapshot.unwrap())
}

#[test]
fn a_group_is_taken_once_and_deleted_whole() {
    let bench = Bench::new();
    let (a, b, c) = (bench.create("a"), bench.create("b"), bench.create("c"));
    let taken = group(&bench, "g", &[&a, &b]).unwrap();
    assert_eq!(group(&bench, "g", &[&b, &a]).unwrap(), taken);
    assert!(taken.ready_to_use && taken.creation_time.is_some());
    let sources: Vec<&String> = taken
        .snapshots
        .iter()
        .map(|s| &s.source_volume_id)
        .collect();
    assert_eq!(sources, [&a, &b]);
    for member in &taken.snapshots {
        assert_eq!(member.group_snapshot_id, taken.group_snapshot_id);
        assert_eq!(member.creation_time, taken.creation_time);
        assert_code(delete(&bench, &member.snapshot_id), Code::InvalidArgument);
    }
    for other in [&[&a[..], &c][..], &[&a], &[&a, &b, &c]] {
        assert_code(group(&bench, "g", other), Code::AlreadyExists);
    }
    let id = &taken.group_snapshot_id;
    let members: Vec<String> = taken
        .snapshots
        .iter()
        .map(|s| s.snapshot_id.clone())
        .collect();
    let reversed: Vec<String> = members.iter().rev().cloned().collect();
    assert_eq!(get_group(&bench, id, &reversed).unwrap(), taken);
    for wrong in [
        vec![],
        members[..1].to_vec(),
        vec![members[0].clone(), "none".to_owned()],
    ] {
        assert_field(get_group(&bench, id, &wrong), "snapshot_ids");
        assert_field(delete_group(&bench, id, &wrong), "snapshot_ids");
    }
    // Its volumes are no part of it.
    bench.delete(&a).unwrap();
    assert_eq!(group(&bench, "g", &[&a, &b]).unwrap(), taken);

    delete_group(&bench, id, &members).unwrap();
    assert_code(delete_group(&bench, id, &[]), Code::Ok);
    assert_code(get_group(&bench, id, &members), Code::NotFound);
    assert!(list(&bench, "", "").is_empty());
}

#[test]
fn requests_for_groups_are_judged() {
    let bench = Bench::new();
    let a = bench.create("a");
    assert_field(group(&bench, "", &[&a]), "name");
    assert_field(group(&bench, "g", &[]), "source_volume_ids");
    assert_field(group(&bench, "g", &[&a, ""]), "source_volume_ids[1]");
    assert_field(group(&bench, "g", &[&a, &a]), "source_volume_ids[1]");
    assert_code(group(&bench, "g", &[&a, "none"]), Code::NotFound);
    assert_code(
        group(&bench, "g", &[&a, &foreign(&a)]),
        Code::FailedPrecondition,
    );
    assert_field(delete_group(&bench, "", &[]), "group_snapshot_id");
    assert_code(delete_group(&bench, "none", &[]), Code::Ok);
    assert_code(get_group(&bench, "none", &[]), Code::NotFound);
    assert!(list(&bench, "", "").is_empty());
    // Snapshots and groups have separate names.
    bench.snapshot("g", &a).unwrap();
    assert_code(group(&bench, "g", &[&a]), Code::Ok);
}
