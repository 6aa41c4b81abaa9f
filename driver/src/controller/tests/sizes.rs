//! Sizes that are rounded up: whatever a claim requests, the same request is enough for its copies.

use hostloop_proto::csi;

use super::bench::*;

/// 1, 100Mi, 500M, 1G, 1500M and 1.5Gi.
const REQUESTS: [i64; 6] = [
    1,
    100 * MI,
    500_000_000,
    1_000_000_000,
    1_500_000_000,
    1536 * MI,
];

fn roomy() -> Bench {
    Bench::with(|plan| plan.options.overcommit = 1e6)
}

fn request(
    name: &str,
    capability: &csi::VolumeCapability,
    required: i64,
) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: range(required, 0),
        ..create_request_for(name, capability.clone())
    }
}

/// Takes a snapshot, and checks that a claim with this request may be restored from it: Kubernetes
/// compares the two.
fn snapshot_for(bench: &Bench, name: &str, volume: &csi::Volume, required: i64) -> String {
    let snapshot = bench.snapshot(name, &volume.volume_id).unwrap();
    let size = snapshot.size_bytes;
    assert!(
        0 < size && size <= required,
        "{name}: {size}, more than {required}"
    );
    assert!(size <= volume.capacity_bytes, "{name}");
    snapshot.snapshot_id
}

#[test]
fn a_request_is_enough_for_the_copies_of_its_volume() {
    let mut bench = roomy();
    for (fs, capability) in [
        ("ext4", mount("ext4")),
        ("xfs", mount("xfs")),
        ("btrfs", mount("btrfs")),
        ("block", block()),
    ] {
        for required in REQUESTS {
            let what = format!("{fs}-{required}");
            let request = |name: &str| request(&format!("{what}-{name}"), &capability, required);
            let made = bench.try_create(request("made")).unwrap();
            assert!(made.capacity_bytes >= required, "{what}: {made:?}");
            assert_eq!(bench.try_create(request("made")).unwrap(), made, "{what}");
            let snapshot = snapshot_for(&bench, &what, &made, required);
            let copy = |name: &str, source| {
                let source = from(source);
                let request = csi::CreateVolumeRequest {
                    volume_content_source: source,
                    ..request(name)
                };
                let copy = bench.try_create(request).unwrap();
                assert_eq!(copy.capacity_bytes, made.capacity_bytes, "{what} {name}");
                copy
            };
            let restored = copy("restored", of_snapshot(&snapshot));
            let cloned = copy("cloned", of_volume(&made.volume_id));
            snapshot_for(&bench, &format!("{what}-of-restored"), &restored, required);
            snapshot_for(&bench, &format!("{what}-of-cloned"), &cloned, required);

            // The next request is odd, too.
            let more = made.capacity_bytes + 333_333_333;
            let expanded = bench.grow(&made.volume_id, range(more, 0)).unwrap();
            assert!(expanded >= more, "{what}");
            let grown = csi::Volume {
                capacity_bytes: expanded,
                ..made
            };
            snapshot_for(&bench, &format!("{what}-of-grown"), &grown, more);

            // The records have it.
            bench = bench.restart(|_| {});
            let listed = bench.controller.get_snapshot(csi::GetSnapshotRequest {
                snapshot_id: snapshot,
                ..Default::default()
            });
            assert!(
                listed.unwrap().snapshot.unwrap().size_bytes <= required,
                "{what}"
            );
            snapshot_for(&bench, &format!("{what}-later"), &grown, more);
        }
    }
}

/// With another mode, the copy has the size of its source or the minimum of its filesystem, and the
/// same request is enough for copies of that.
#[test]
fn a_request_is_enough_with_another_volume_mode() {
    let bench = roomy();
    for fs in ["ext4", "xfs", "btrfs"] {
        for (kind, first, second) in [
            ("to-block", mount(fs), block()),
            ("from-block", block(), mount(fs)),
        ] {
            let allowed = || match kind {
                "from-block" => pairs("allowVolumeModeChange=true"),
                _ => pairs(""),
            };
            let what = format!("{fs}-{kind}");
            let made = bench.try_create(request(&what, &first, 1)).unwrap();
            let snapshot = snapshot_for(&bench, &what, &made, 1);
            let restored = bench.try_create(csi::CreateVolumeRequest {
                volume_content_source: from(of_snapshot(&snapshot)),
                parameters: allowed(),
                ..request(&format!("{what}-restored"), &second, 1)
            });
            let restored = restored.unwrap();
            assert!(restored.capacity_bytes >= made.capacity_bytes, "{what}");
            let snapshot = snapshot_for(&bench, &format!("{what}-2"), &restored, 1);
            let again = bench.try_create(csi::CreateVolumeRequest {
                volume_content_source: from(of_snapshot(&snapshot)),
                ..request(&format!("{what}-again"), &second, 1)
            });
            assert_eq!(
                again.unwrap().capacity_bytes,
                restored.capacity_bytes,
                "{what}"
            );
        }
    }
}

/// A class of another filesystem is refused, whatever the sizes.
#[test]
fn another_filesystem_is_refused() {
    let bench = roomy();
    let made = bench.try_create(request("made", &mount("xfs"), 1)).unwrap();
    let snapshot = snapshot_for(&bench, "cut", &made, 1);
    let other = bench.try_create(csi::CreateVolumeRequest {
        volume_content_source: from(of_snapshot(&snapshot)),
        ..request("other", &mount("ext4"), 1)
    });
    assert_answer(other, "volume_content_source");
}

/// What a full pool refuses leaves the volume as it was, and the next request succeeds.
#[test]
fn a_refused_expansion_or_modification_can_be_taken_back() {
    let bench = roomy();
    let request = request("large", &block(), 4096 * GI);
    let volume = bench.try_create(request).unwrap().volume_id;
    assert_answer(
        bench.modify(&volume, "provisioning=thick"),
        "InvalidArgument",
    );
    bench
        .modify(&volume, "provisioning=thin readAheadKiB=256")
        .unwrap();

    let bench = Bench::with(|plan| plan.capacity_bytes = Some(40 << 20));
    let volume = bench.create("a");
    for required in [41 * MI, 500 * GI] {
        assert_answer(bench.grow(&volume, range(required, 0)), "OutOfRange");
    }
    assert_eq!(bench.grow(&volume, range(9 * MI, 0)).unwrap(), 9 * MI);
}
