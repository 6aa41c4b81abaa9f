//! Sizes to which an ext4 does not grow without CAP_SYS_RESOURCE.

use hostloop_proto::csi;

use super::bench::*;
use crate::controller::Error;

fn out_of_range<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let Err(Error::OutOfRange(why)) = answer else {
        panic!("{answer:?}");
    };
    for says in [
        "capacity_range.required_bytes",
        "8 GiB (8589934592 bytes) at most",
        "CAP_SYS_RESOURCE",
    ] {
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn an_ext4_is_not_promised_more_than_it_grows_to() {
    let bench = Bench::new();
    bench.kernel.withhold_growth(true);
    let id = bench.created(create_request("pvc-1"));
    let before = bench.record(&id);
    out_of_range(bench.grow(&id, range(20 * GI, 0)));
    assert_eq!(*bench.record(&id), *before, "nothing has changed");

    // So are copies that would have to grow.
    let snapshot = bench.snapshot("s", &id).unwrap().snapshot_id;
    for (name, source) in [
        ("clone", of_volume(&id)),
        ("restore", of_snapshot(&snapshot)),
    ] {
        let larger = |bytes| csi::CreateVolumeRequest {
            capacity_range: range(bytes, 0),
            volume_content_source: from(source.clone()),
            ..create_request(name)
        };
        out_of_range(bench.try_create(larger(20 * GI)));
        assert_eq!(
            bench.volume_ids().len(),
            if name == "clone" { 1 } else { 2 }
        );
        let copy = bench.try_create(larger(8 * GI)).unwrap();
        assert_eq!(copy.capacity_bytes, 8 * GI);
    }
    assert_eq!(bench.grow(&id, range(8 * GI, 0)).unwrap(), 8 * GI);

    // A copy of the same size needs no growth, whatever an older version has promised.
    bench
        .node
        .pools
        .expand_volume(&before.id, 20 << 30)
        .unwrap();
    let same = csi::CreateVolumeRequest {
        capacity_range: range(20 * GI, 0),
        volume_content_source: from(of_volume(&id)),
        ..create_request("same")
    };
    assert_eq!(bench.try_create(same).unwrap().capacity_bytes, 20 * GI);

    bench.kernel.withhold_growth(false);
    assert_eq!(bench.grow(&id, range(40 * GI, 0)).unwrap(), 40 * GI);
}

#[test]
fn other_filesystems_and_block_devices_have_no_such_limit() {
    let bench = Bench::new();
    bench.kernel.withhold_growth(true);
    for (name, capability) in [
        ("xfs", mount("xfs")),
        ("btrfs", mount("btrfs")),
        ("raw", block()),
    ] {
        let request = csi::CreateVolumeRequest {
            capacity_range: range(300 * MI, 0),
            volume_capabilities: vec![capability],
            ..create_request(name)
        };
        let id = bench.created(request);
        assert_eq!(
            bench.grow(&id, range(2000 * GI, 0)).unwrap(),
            2000 * GI,
            "{name}"
        );
    }
}
