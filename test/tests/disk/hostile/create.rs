//! CreateVolume's table, with the capabilities that the other tables use, too.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use hostloop_test::attacks::MKFS_OPTIONS;
use hostloop_test::client::{map, mounted, new_volume, raw_block};
use hostloop_test::driver::NODE;
use hostloop_test::pools::MIB;
use tonic::Code;

use super::bench::Bench;
use super::strings;
use super::strings::{foreign, missing, not_ids, not_names};

pub(crate) const INVALID: &[Code] = &[Code::InvalidArgument];
/// A string that is no ID is a missing one; one of more than 128 bytes may be called invalid.
pub(crate) const MISSING: &[Code] = &[Code::NotFound, Code::InvalidArgument];
/// An ID of a pool that is not here: anything but success, and nothing that says it is gone.
pub(crate) const FOREIGN: &[Code] = &[Code::NotFound, Code::FailedPrecondition, Code::Unavailable];

type Create = csi::CreateVolumeRequest;

pub(crate) fn range(required_bytes: i64, limit_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

fn mode(number: i32) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: number }),
        ..mounted("ext4", Mode::SingleNodeWriter)
    }
}

fn mount_with(change: impl FnOnce(&mut MountVolume)) -> csi::VolumeCapability {
    let mut mount = MountVolume {
        fs_type: "ext4".to_owned(),
        ..Default::default()
    };
    change(&mut mount);
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        ..mounted("ext4", Mode::SingleNodeWriter)
    }
}

/// Capabilities that are none.
pub(crate) fn not_capabilities() -> Vec<(&'static str, csi::VolumeCapability)> {
    let plain = || mounted("ext4", Mode::SingleNodeWriter);
    vec![
        ("an empty capability", csi::VolumeCapability::default()),
        (
            "no access mode",
            csi::VolumeCapability {
                access_mode: None,
                ..plain()
            },
        ),
        (
            "no access type",
            csi::VolumeCapability {
                access_type: None,
                ..plain()
            },
        ),
        ("the unknown mode", mode(0)),
        ("mode 99", mode(99)),
        ("mode -1", mode(-1)),
        ("the largest mode", mode(i32::MAX)),
        (
            "a filesystem we don't make",
            mount_with(|m| m.fs_type = "ntfs".to_owned()),
        ),
        (
            "a filesystem that is a path",
            mount_with(|m| m.fs_type = "../ext4".to_owned()),
        ),
        (
            "a filesystem with a NUL",
            mount_with(|m| m.fs_type = "ext4\0".to_owned()),
        ),
        (
            "a filesystem with an option",
            mount_with(|m| m.fs_type = "ext4 -F".to_owned()),
        ),
        (
            "an empty mount flag",
            mount_with(|m| m.mount_flags = vec![String::new()]),
        ),
        (
            "a mount flag with a NUL",
            mount_with(|m| m.mount_flags = vec!["ro\0".to_owned()]),
        ),
        (
            "a mount flag with a newline",
            mount_with(|m| m.mount_flags = vec!["a\nb".to_owned()]),
        ),
        (
            "a mount group",
            mount_with(|m| m.volume_mount_group = "1000".to_owned()),
        ),
        (
            "a mount group that is none",
            mount_with(|m| m.volume_mount_group = "root".to_owned()),
        ),
    ]
}

pub(crate) async fn create_volume(bench: &mut Bench) {
    let secrets = bench.secrets();
    let base = || Create {
        secrets: secrets.clone(),
        ..new_volume("pvc-hostile", 32 * MIB)
    };
    for (what, name) in not_names() {
        bench.refuse(what, Create { name, ..base() }, INVALID).await;
    }
    let none = Create {
        volume_capabilities: Vec::new(),
        ..base()
    };
    bench.refuse("no capability", none, INVALID).await;
    for (what, capability) in not_capabilities() {
        let request = Create {
            volume_capabilities: vec![capability.clone()],
            ..base()
        };
        bench.refuse(what, request, INVALID).await;
        let good = mounted("ext4", Mode::SingleNodeWriter);
        let request = Create {
            volume_capabilities: vec![good, capability],
            ..base()
        };
        bench
            .refuse(&format!("{what} as the second"), request, INVALID)
            .await;
    }
    let both = vec![
        mounted("ext4", Mode::SingleNodeWriter),
        raw_block(Mode::SingleNodeWriter),
    ];
    let both = Create {
        volume_capabilities: both,
        ..base()
    };
    bench
        .refuse("block and mount together", both, INVALID)
        .await;
    sizes(bench).await;
    parameters(bench).await;
    sources(bench).await;
    topologies(bench).await;
}

async fn sizes(bench: &mut Bench) {
    let base = |capacity_range| Create {
        capacity_range,
        ..new_volume("pvc-hostile", 0)
    };
    let refused: [(&str, _, &[Code]); 9] = [
        ("a negative size", range(-1, 0), INVALID),
        ("the most negative size", range(i64::MIN, 0), INVALID),
        ("a negative limit", range(0, -1), INVALID),
        ("the most negative limit", range(1, i64::MIN), INVALID),
        ("a limit below the size", range(64 << 20, 32 << 20), INVALID),
        ("a limit of one byte", range(0, 1), &[Code::OutOfRange]),
        ("a limit below a block", range(1, 4095), &[Code::OutOfRange]),
        (
            "the largest size",
            range(i64::MAX, 0),
            &[Code::OutOfRange, Code::ResourceExhausted],
        ),
        (
            "the largest size and limit",
            range(i64::MAX, i64::MAX),
            &[Code::OutOfRange, Code::ResourceExhausted],
        ),
    ];
    for (what, capacity_range, codes) in refused {
        bench.refuse(what, base(capacity_range), codes).await;
    }
    let xfs = Create {
        volume_capabilities: vec![mounted("xfs", Mode::SingleNodeWriter)],
        ..base(range(1 << 20, 100 << 20))
    };
    bench
        .refuse(
            "a limit below the filesystem's minimum",
            xfs,
            &[Code::OutOfRange],
        )
        .await;
    let exabyte = range(1 << 60, 0);
    let codes = [Code::OutOfRange, Code::ResourceExhausted];
    bench.refuse("an exabyte", base(exabyte), &codes).await;
    let other = Create {
        name: "pvc-idle".to_owned(),
        ..new_volume("", 512 * MIB)
    };
    bench
        .refuse(
            "a name that is taken, at another size",
            other,
            &[Code::AlreadyExists],
        )
        .await;
}

async fn parameters(bench: &mut Bench) {
    let secrets = bench.secrets();
    let refused = [
        ("unknown", "x"),
        ("", ""),
        ("pool\0", "default"),
        ("Pool", "default"),
        ("pool", "nowhere"),
        ("pool", "../default"),
        ("pool", ""),
        ("kind", "nowhere"),
        ("provisioning", "maybe"),
        ("provisioning", ""),
        ("discard", "perhaps"),
        ("directIO", "2"),
        ("readAheadKiB", "-1"),
        ("readAheadKiB", "99999999999999999999"),
        ("mkfsOptions", "-N 10\0"),
    ];
    for (key, value) in refused {
        let request = Create {
            parameters: map(&[(key, value)]),
            secrets: secrets.clone(),
            ..new_volume("pvc-hostile", 32 * MIB)
        };
        bench
            .refuse(&format!("parameter {key:?}={value:?}"), request, INVALID)
            .await;
    }
    for (fs, options) in MKFS_OPTIONS {
        let request = Create {
            parameters: map(&[("mkfsOptions", options)]),
            volume_capabilities: vec![mounted(fs, Mode::SingleNodeWriter)],
            ..new_volume("pvc-hostile", 512 * MIB)
        };
        bench
            .refuse(&format!("mkfs.{fs} {options}"), request, INVALID)
            .await;
    }
    let contradiction = Create {
        parameters: map(&[("pool", "default"), ("kind", "nowhere")]),
        ..new_volume("pvc-hostile", 32 * MIB)
    };
    bench
        .refuse("a pool and another kind", contradiction, INVALID)
        .await;
    for (key, value) in [
        ("unknown", "x"),
        ("provisioning", "maybe"),
        ("pool", "default"),
    ] {
        let request = Create {
            mutable_parameters: map(&[(key, value)]),
            ..new_volume("pvc-hostile", 32 * MIB)
        };
        bench
            .refuse(&format!("mutable {key:?}={value:?}"), request, INVALID)
            .await;
    }
}

async fn sources(bench: &mut Bench) {
    let (idle, snapshot) = (bench.known.idle.clone(), bench.known.snapshot.clone());
    let from = |r#type| Create {
        volume_content_source: Some(csi::VolumeContentSource { r#type }),
        ..new_volume("pvc-hostile", 32 * MIB)
    };
    let volume = |id: &str| {
        from(Some(Type::Volume(VolumeSource {
            volume_id: id.to_owned(),
        })))
    };
    let snap = |id: &str| {
        from(Some(Type::Snapshot(SnapshotSource {
            snapshot_id: id.to_owned(),
        })))
    };
    bench
        .refuse("a source of no type", from(None), INVALID)
        .await;
    bench
        .refuse("a source volume without ID", volume(""), INVALID)
        .await;
    bench
        .refuse("a source snapshot without ID", snap(""), INVALID)
        .await;
    for (what, id) in not_ids(&idle) {
        bench
            .refuse(&format!("{what} as source volume"), volume(&id), MISSING)
            .await;
    }
    for (what, id) in not_ids(&snapshot) {
        bench
            .refuse(&format!("{what} as source snapshot"), snap(&id), MISSING)
            .await;
    }
    bench
        .refuse("a snapshot as source volume", volume(&snapshot), MISSING)
        .await;
    bench
        .refuse("a volume as source snapshot", snap(&idle), MISSING)
        .await;
    bench
        .refuse(
            "a missing source volume",
            volume(&missing(&idle)),
            &[Code::NotFound],
        )
        .await;
    bench
        .refuse(
            "another node's snapshot",
            snap(&foreign(&snapshot)),
            FOREIGN,
        )
        .await;
    let smaller = Create {
        capacity_range: range(8 << 20, 8 << 20),
        ..snap(&snapshot)
    };
    bench
        .refuse(
            "a source that does not fit",
            smaller,
            &[Code::OutOfRange, Code::InvalidArgument],
        )
        .await;
}

async fn topologies(bench: &mut Bench) {
    let on = |key: &str, value: &str| csi::Topology {
        segments: map(&[(key, value)]),
    };
    let key = "topology.hostloop.csi.dev/node";
    for (what, topology) in [
        ("another node", on(key, "elsewhere")),
        ("an unknown key", on("region", "moon")),
        ("a node that is a path", on(key, "../")),
        (
            "this node and more",
            csi::Topology {
                segments: map(&[(key, NODE), ("region", "moon")]),
            },
        ),
    ] {
        let request = Create {
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: vec![topology.clone()],
                preferred: vec![topology],
            }),
            ..new_volume("pvc-hostile", 32 * MIB)
        };
        bench
            .refuse(what, request, &[Code::ResourceExhausted])
            .await;
    }
}

/// Odd and legal names make volumes, each its own, and come back unchanged.
pub(crate) async fn odd_names(bench: &mut Bench) {
    let before = bench.csi.volume_ids().await.len();
    let mut ids = Vec::new();
    for (what, name) in strings::odd_names() {
        let request = Create {
            secrets: bench.secrets(),
            ..new_volume(&name, 8 * MIB)
        };
        let first = bench.take(what, request.clone()).await;
        let again = bench.take(&format!("{what}, again"), request).await;
        let id = |answer: Option<csi::CreateVolumeResponse>| Some(answer?.volume?.volume_id);
        let (first, again) = (id(first), id(again));
        assert_eq!(first, again, "a volume of the name {name:?}");
        ids.extend(first);
    }
    let distinct = bench.csi.volume_ids().await.len() - before;
    assert_eq!(
        distinct,
        strings::odd_names().len(),
        "every name has its own volume"
    );
    for volume_id in ids {
        let secrets = bench.secrets();
        bench
            .take("its ID", csi::DeleteVolumeRequest { volume_id, secrets })
            .await;
    }
}
