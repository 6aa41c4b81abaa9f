//! CreateVolume's table.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::attacks::{MKFS_OPTIONS, MOUNT_OPTIONS};
use hostloop_test::client::{flagged, map, mounted, new_volume, raw_block};
use hostloop_test::driver::NODE;
use hostloop_test::pools::MIB;
use hostloop_test::requests::{of_snapshot, of_volume};

use super::bench::{Bench, secrets};
use super::codes::*;
use super::strings::{self, foreign, missing, not_capabilities};

type Create = csi::CreateVolumeRequest;

const NODE_KEY: &str = "topology.hostloop.csi.dev/node";

pub(crate) fn range(required_bytes: i64, limit_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

fn topology(segments: &[(&str, &str)]) -> csi::Topology {
    csi::Topology {
        segments: map(segments),
    }
}

pub(crate) fn on_node(node: &str) -> csi::Topology {
    topology(&[(NODE_KEY, node)])
}

/// A request that only its hostile part makes fail.
fn base() -> Create {
    Create {
        secrets: secrets(),
        ..new_volume("pvc-hostile", 32 * MIB)
    }
}

pub(crate) async fn create_volume(bench: &mut Bench) {
    bench
        .names(|name| Create {
            name: name.to_owned(),
            ..base()
        })
        .await;
    let with = |volume_capabilities| Create {
        volume_capabilities,
        ..base()
    };
    let capability = |c: Option<_>| with(c.into_iter().collect());
    bench.capabilities(capability).await;
    let good = || mounted("ext4", Mode::SingleNodeWriter);
    for (what, capability) in not_capabilities() {
        let what = format!("{what} as the second");
        bench
            .refuse(&what, with(vec![good(), capability]), INVALID)
            .await;
    }
    let both = with(vec![good(), raw_block(Mode::SingleNodeWriter)]);
    bench
        .refuse("block and mount together", both, INVALID)
        .await;
    sizes(bench).await;
    parameters(bench).await;
    sources(bench).await;
    topologies(bench).await;
}

async fn sizes(bench: &mut Bench) {
    let size = |required, limit| Create {
        capacity_range: range(required, limit),
        ..base()
    };
    let xfs = Create {
        volume_capabilities: vec![mounted("xfs", Mode::SingleNodeWriter)],
        ..size(1 << 20, 100 << 20)
    };
    let rows = [
        ("a negative size", size(-1, 0), INVALID),
        ("the most negative size", size(i64::MIN, 0), INVALID),
        ("a negative limit", size(0, -1), INVALID),
        ("the most negative limit", size(1, i64::MIN), INVALID),
        ("a limit below the size", size(64 << 20, 32 << 20), INVALID),
        ("a limit of one byte", size(0, 1), OUT_OF_RANGE),
        ("a limit below a block", size(1, 4095), OUT_OF_RANGE),
        ("a limit below XFS's minimum", xfs, OUT_OF_RANGE),
        ("the largest size", size(i64::MAX, 0), TOO_LARGE),
        ("the largest limit", size(i64::MAX, i64::MAX), TOO_LARGE),
        ("an exabyte", size(1 << 60, 0), TOO_LARGE),
        ("another size", new_volume("pvc-idle", 512 * MIB), EXISTS),
    ];
    bench.refuse_all(rows).await;
}

async fn parameters(bench: &mut Bench) {
    let immutable = [
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
    let with = |key: &str, value: &str| Create {
        parameters: map(&[(key, value)]),
        ..base()
    };
    bench.parameters(&immutable, with).await;
    let mutable = [
        ("unknown", "x"),
        ("provisioning", "maybe"),
        ("pool", "default"),
    ];
    let with = |key: &str, value: &str| Create {
        mutable_parameters: map(&[(key, value)]),
        ..base()
    };
    bench.parameters(&mutable, with).await;
    let mkfs = |fs: &str, options: &str| Create {
        parameters: map(&[("mkfsOptions", options)]),
        volume_capabilities: vec![mounted(fs, Mode::SingleNodeWriter)],
        ..new_volume("pvc-hostile", 512 * MIB)
    };
    bench.parameters(MKFS_OPTIONS, mkfs).await;
    let mount = |fs: &str, options: &str| Create {
        volume_capabilities: vec![flagged(fs, options)],
        ..new_volume("pvc-hostile", 512 * MIB)
    };
    bench.parameters(MOUNT_OPTIONS, mount).await;
    let contradiction = Create {
        parameters: map(&[("pool", "default"), ("kind", "nowhere")]),
        ..base()
    };
    bench
        .refuse("a pool and another kind", contradiction, INVALID)
        .await;
}

async fn sources(bench: &mut Bench) {
    let known = bench.known.clone();
    let (idle, snapshot) = (&known.idle[..], &known.snapshot[..]);
    let from = |volume_content_source| Create {
        volume_content_source,
        ..base()
    };
    let volume = |id: &str| from(of_volume(id));
    let snap = |id: &str| from(of_snapshot(id));
    bench.ids(idle, volume, MISSING).await;
    bench.ids(snapshot, snap, MISSING).await;
    let raw = volume(&known.block);
    let smaller = Create {
        capacity_range: range(8 << 20, 8 << 20),
        ..snap(snapshot)
    };
    let elsewhere = snap(&foreign(snapshot));
    let rows = [
        (
            "a source of no type",
            from(Some(Default::default())),
            INVALID,
        ),
        ("the bytes of a block device as a filesystem", raw, INVALID),
        ("a snapshot as a volume", volume(snapshot), MISSING),
        ("a volume as a snapshot", snap(idle), MISSING),
        ("a missing volume", volume(&missing(idle)), NOT_FOUND),
        ("another node's snapshot", elsewhere, FOREIGN),
        ("a source that does not fit", smaller, BAD_RANGE),
    ];
    bench.refuse_all(rows).await;
}

async fn topologies(bench: &mut Bench) {
    for (what, topology) in [
        ("another node", on_node("elsewhere")),
        ("an unknown key", topology(&[("region", "moon")])),
        ("a node that is a path", on_node("../")),
        (
            "this node and more",
            topology(&[(NODE_KEY, NODE), ("region", "moon")]),
        ),
    ] {
        let request = Create {
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: vec![topology.clone()],
                preferred: vec![topology],
            }),
            ..base()
        };
        bench.refuse(what, request, EXHAUSTED).await;
    }
}

/// Odd and legal names make volumes, each its own, and come back unchanged.
pub(crate) async fn odd_names(bench: &mut Bench) {
    let before = bench.csi.volume_ids().await.len();
    let mut ids = Vec::new();
    for (what, name) in strings::odd_names() {
        let request = Create {
            secrets: secrets(),
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
    let names = strings::odd_names().len();
    assert_eq!(distinct, names, "every name has its own volume");
    for volume_id in ids {
        bench
            .take(
                "its ID",
                csi::DeleteVolumeRequest {
                    volume_id,
                    secrets: secrets(),
                },
            )
            .await;
    }
}
