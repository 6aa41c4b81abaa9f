//! A node with additional topology keys, and one without a known topology.

use std::collections::BTreeSet;

use hostloop_proto::csi;

use super::bench::*;
use crate::csi::topology::Topology;

/// A node with its own key and a rack, and with its zone once that is read. The directory stores
/// the labels.
fn bench() -> (Bench, Topology, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let own = pairs("t/node=n1 rack=r1");
    let labels = BTreeSet::from(["zone".to_owned()]);
    let topology = Topology::with_labels(own, labels, "n1", dir.path());
    let bench = Bench::with(|plan| plan.config.topology = topology.clone());
    (bench, topology, dir)
}

#[test]
fn answers_have_all_keys_and_requests_match_by_some() {
    let (bench, topology, _dir) = bench();
    topology.take(&pairs("zone=z1")).unwrap();
    let all = "t/node=n1 rack=r1 zone=z1";
    for (requested, matches) in [("rack=r1 zone=z1", true), ("rack=r2 zone=z1", false)] {
        let capacity = bench.capacity(|r| r.accessible_topology = Some(place(requested)));
        assert_eq!(capacity.unwrap().0 > 0, matches, "{requested}");
        let made = bench.try_create(csi::CreateVolumeRequest {
            accessibility_requirements: required([requested]),
            ..create_request(requested)
        });
        if matches {
            let topology = made.unwrap().accessible_topology;
            assert_eq!(topology, [place(all)], "{requested}");
        } else {
            assert_eq!(answer(made), "ResourceExhausted", "{requested}");
        }
    }
    let volume = bench.create("v");
    // The answer omits a topology only if the request names all of it.
    for (name, requested, expected) in [
        ("s", None, vec![place(all)]),
        ("t", required(["zone=z1"]), vec![place(all)]),
        ("u", required([all]), vec![]),
    ] {
        let made = bench.snapshot_as(name, &volume, |r| r.accessibility_requirements = requested);
        assert_eq!(made.unwrap().accessible_topology, expected, "{name}");
    }
}

#[test]
fn rpcs_with_a_topology_are_unavailable_until_it_is_known() {
    let (bench, topology, _dir) = bench();
    let listed = csi::ListVolumesRequest::default();
    for got in [
        answer(bench.try_create(create_request("a"))),
        answer(bench.controller.list_volumes(listed)),
        answer(bench.capacity(|_| {})),
    ] {
        assert_eq!(got, "Unavailable");
    }
    bench.delete("none").unwrap();
    // No volume was created meanwhile.
    topology.take(&pairs("zone=z1")).unwrap();
    assert!(bench.volume_ids().is_empty());
    bench.create("a");
}
