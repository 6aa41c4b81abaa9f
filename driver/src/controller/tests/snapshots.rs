//! Snapshots and groups.

use std::io::Write;
use std::sync::Arc;

use hostloop_proto::csi;
use parking_lot::Mutex;

use super::bench::*;
use crate::controller::Result;
use crate::controller::parameters::UnknownKeys;

fn get(bench: &Bench, id: &str) -> Result<csi::Snapshot> {
    let request = csi::GetSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    Ok(bench.controller.get_snapshot(request)?.snapshot.unwrap())
}

fn none_left(bench: &Bench) -> bool {
    bench.snapshot_ids("", "").unwrap().is_empty()
}

#[test]
fn a_snapshot_is_taken_once_and_outlives_its_volume() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    let snapshot = bench.snapshot("s", &a).unwrap();
    let id = &snapshot.snapshot_id;
    assert_eq!(bench.snapshot("s", &a).unwrap(), snapshot);
    assert_eq!(get(&bench, id).unwrap(), snapshot);
    assert_eq!(snapshot.source_volume_id, a);
    assert_eq!(snapshot.size_bytes, 8 * MI);
    assert!(snapshot.ready_to_use && snapshot.creation_time.is_some());
    assert_eq!(snapshot.accessible_topology, [place("t/node=n1")]);
    assert_answer(bench.snapshot("s", &b), "AlreadyExists");

    bench.delete(&a).unwrap();
    assert_eq!(bench.snapshot("s", &a).unwrap(), snapshot);
    assert_answer(bench.snapshot("t", &a), "NotFound");
    let listed = bench.snapshot_ids("", &a).unwrap();
    assert_eq!(listed, std::slice::from_ref(id));
    bench.create_from("restored", of_snapshot(id)).unwrap();
    bench.delete_snapshot(id).unwrap();
    bench.delete_snapshot(id).unwrap();
    assert_answer(get(&bench, id), "NotFound");
}

#[test]
fn lists_are_filtered() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    let a1 = bench.snapshot("a1", &a).unwrap().snapshot_id;
    let b1 = bench.snapshot("b1", &b).unwrap().snapshot_id;
    let a2 = bench.snapshot("a2", &a).unwrap().snapshot_id;
    let table: [(&str, &str, &[&String]); 7] = [
        ("", "", &[&a1, &b1, &a2]),
        ("", &a, &[&a1, &a2]),
        (&b1, &b, &[&b1]),
        (&b1, &a, &[]),
        (&foreign(&a1), "", &[]),
        ("", &foreign(&a), &[]),
        (&a, "", &[]),
    ];
    for (snapshot, source, expected) in table {
        let got = bench.snapshot_ids(snapshot, source).unwrap();
        let got: Vec<_> = got.iter().collect();
        assert_eq!(got, expected, "{snapshot} {source}");
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
    let response = bench.controller.delete_volume_group_snapshot(request);
    response.map(drop)
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
fn a_group_is_taken_once_and_deleted_as_a_whole() {
    let bench = Bench::new();
    let (a, b, c) = (bench.create("a"), bench.create("b"), bench.create("c"));
    let taken = group(&bench, "g", &[&a, &b]).unwrap();
    assert_eq!(group(&bench, "g", &[&b, &a]).unwrap(), taken);
    assert!(taken.ready_to_use && taken.creation_time.is_some());
    for (member, source) in taken.snapshots.iter().zip([&a, &b]) {
        assert_eq!(member.source_volume_id, *source);
        assert_eq!(member.group_snapshot_id, taken.group_snapshot_id);
        assert_eq!(member.creation_time, taken.creation_time);
        let refused = bench.delete_snapshot(&member.snapshot_id);
        assert_answer(refused, "InvalidArgument");
    }
    for other in [&[&a[..], &c][..], &[&a], &[&a, &b, &c]] {
        assert_answer(group(&bench, "g", other), "AlreadyExists");
    }
    let id = &taken.group_snapshot_id;
    let members = taken.snapshots.iter().map(|s| s.snapshot_id.clone());
    let members: Vec<String> = members.collect();
    assert_eq!(members.len(), 2);
    let reversed: Vec<String> = members.iter().rev().cloned().collect();
    assert_eq!(get_group(&bench, id, &reversed).unwrap(), taken);
    for wrong in [
        vec![],
        members[..1].to_vec(),
        vec![members[0].clone(), "none".to_owned()],
    ] {
        assert_answer(get_group(&bench, id, &wrong), "snapshot_ids");
        assert_answer(delete_group(&bench, id, &wrong), "snapshot_ids");
    }
    // The group outlives its volumes.
    bench.delete(&a).unwrap();
    assert_eq!(group(&bench, "g", &[&a, &b]).unwrap(), taken);

    delete_group(&bench, id, &members).unwrap();
    delete_group(&bench, id, &[]).unwrap();
    assert_answer(get_group(&bench, id, &members), "NotFound");
    assert!(none_left(&bench));
}

/// The log of a thread. Clones share it.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The lines that these calls log with this text.
    fn lines_with(text: &str, calls: impl FnOnce()) -> usize {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, calls);
        let bytes = log.0.lock().clone();
        let lines = String::from_utf8(bytes).unwrap();
        lines.lines().filter(|line| line.contains(text)).count()
    }
}

/// The server asks first whether a call that may take long is refused.
#[test]
fn a_call_warns_once_of_a_parameter_without_effect() {
    let bench = Bench::with(|plan| plan.config.unknown_parameters = UnknownKeys::Ignored);
    let volume = bench.create("a");
    for (name, parameters, warning) in [
        (
            "kept",
            "deletionPolicy=Retain",
            "only its field deletionPolicy",
        ),
        ("fast", "speed=high", "this driver does not have it"),
    ] {
        let request = csi::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.clone(),
            parameters: pairs(parameters),
            ..Default::default()
        };
        let warnings = Log::lines_with(warning, || {
            assert!(!bench.controller.refuses_snapshot(&request));
            bench.controller.create_snapshot(request).unwrap();
        });
        assert_eq!(warnings, 1, "{parameters}");
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: format!("group-{name}"),
            source_volume_ids: vec![volume.clone()],
            parameters: pairs(parameters),
            ..Default::default()
        };
        let warnings = Log::lines_with(warning, || {
            assert!(!bench.controller.refuses_group(&request));
            bench
                .controller
                .create_volume_group_snapshot(request)
                .unwrap();
        });
        assert_eq!(warnings, 1, "group {parameters}");
    }
}
