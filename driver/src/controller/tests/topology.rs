//! A node with additional topology keys, and one without a known topology.

use std::collections::BTreeSet;

use hostloop_proto::csi;
use tonic::Code;

use super::bench::*;
use crate::csi::topology::Topology;

/// A node with its own key and a rack, and with its zone once that is read. The directory stores
/// the labels.
fn bench() -> (Bench, Topology, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let own = map(&[("t/node", "n1"), ("rack", "r1")]);
    let labels = BTreeSet::from(["zone".to_owned()]);
    let topology = Topology::with_labels(own, labels, "n1", dir.path());
    let bench = Bench::with(|plan| plan.config.topology = topology.clone());
    (bench, topology, dir)
}

fn places(pairs: &[(&str, &str)]) -> csi::Topology {
    csi::Topology {
        segments: map(pairs),
    }
}

#[test]
fn all_keys_are_told_and_each_is_enough_to_be_found_by() {
    let (bench, topology, _dir) = bench();
    topology.take(&map(&[("zone", "z1")])).unwrap();
    let all = places(&[("t/node", "n1"), ("rack", "r1"), ("zone", "z1")]);
    let told = std::slice::from_ref(&all);
    for (n, place, here) in [
        (0, all.clone(), true),
        (1, places(&[("zone", "z1")]), true),
        (2, places(&[("rack", "r1"), ("zone", "z1")]), true),
        (3, places(&[("zone", "z2")]), false),
        (4, places(&[("rack", "r2"), ("zone", "z1")]), false),
        (5, places(&[("region", "eu")]), false),
    ] {
        let request = csi::GetCapacityRequest {
            accessible_topology: Some(place.clone()),
            ..Default::default()
        };
        let room = bench.controller.get_capacity(request).unwrap();
        assert_eq!(room.available_capacity > 0, here, "{place:?}");
        let made = bench.try_create(csi::CreateVolumeRequest {
            accessibility_requirements: required(place.clone()),
            ..Bench::request(&format!("pvc-{n}"))
        });
        match here {
            true => assert_eq!(made.unwrap().accessible_topology, told, "{place:?}"),
            false => assert_eq!(code(made), Code::ResourceExhausted, "{place:?}"),
        }
    }
    let volume = bench.create("v");
    let taken = bench.snapshot("s", &volume).unwrap();
    assert_eq!(taken.accessible_topology, told);
    // In part is not all: the answer says the rest.
    let request = |name: &str, place: &csi::Topology| csi::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.clone(),
        accessibility_requirements: required(place.clone()),
        ..Default::default()
    };
    for (name, place, told) in [
        ("t", places(&[("zone", "z1")]), vec![all.clone()]),
        ("u", all.clone(), vec![]),
    ] {
        let made = bench
            .controller
            .create_snapshot(request(name, &place))
            .unwrap();
        assert_eq!(
            made.snapshot.unwrap().accessible_topology,
            told,
            "{place:?}"
        );
    }
}

#[test]
fn until_it_is_known_nothing_is_said_of_places() {
    let (bench, topology, _dir) = bench();
    let controller = &bench.controller;
    assert_code(bench.try_create(Bench::request("a")), Code::Unavailable);
    let listed = controller.list_volumes(csi::ListVolumesRequest::default());
    assert_code(listed, Code::Unavailable);
    let room = controller.get_capacity(csi::GetCapacityRequest::default());
    assert_code(room, Code::Unavailable);
    // What needs no place goes on.
    assert_code(bench.delete("none"), Code::Ok);
    // No volume was created meanwhile.
    topology.take(&map(&[("zone", "z1")])).unwrap();
    assert!(bench.volume_ids().is_empty());
    bench.create("a");
}
