use std::collections::BTreeMap;

use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use hostloop_proto::csi::volume_content_source::{SnapshotSource, VolumeSource};

use super::super::super::tests::config;
use super::*;
use crate::storage::{Format, PoolId, Provisioning, Settings, VolumeId};

fn capability(fs: &str, mode: i32) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: fs.to_owned(),
            ..MountVolume::default()
        })),
    }
}

fn map(entries: &[(&str, &str)]) -> Parameters {
    let entry = |(k, v): &(&str, &str)| (k.to_string(), v.to_string());
    entries.iter().map(entry).collect()
}

/// A request for 8 MiB of ext4.
fn request() -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        capacity_range: range(8 << 20, 0),
        volume_capabilities: vec![capability("ext4", 1)],
        parameters: map(&[("pool", "default"), ("csi.storage.k8s.io/pvc/name", "a")]),
        ..csi::CreateVolumeRequest::default()
    }
}

fn range(required_bytes: i64, limit_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

fn from(r#type: Type) -> Option<csi::VolumeContentSource> {
    Some(csi::VolumeContentSource {
        r#type: Some(r#type),
    })
}

fn from_volume(id: impl ToString) -> Option<csi::VolumeContentSource> {
    from(Type::Volume(VolumeSource {
        volume_id: id.to_string(),
    }))
}

/// What the request made.
fn record(source: Option<Source>) -> VolumeRecord {
    let order = Order::read(&request(), &config()).unwrap();
    VolumeRecord {
        schema: 1,
        id: VolumeId::generate(PoolId::generate()),
        name: order.name,
        capacity_bytes: 8 << 20,
        capabilities: order.wanted.into_all(),
        parameters: order.parameters,
        mutable_parameters: order.mutable_parameters,
        settings: Settings {
            provisioning: Provisioning::Thin,
            discard: true,
            direct_io: true,
            read_ahead_kib: None,
        },
        mkfs_options: Vec::new(),
        source,
        created_ns: 0,
        format: Format::None,
        fresh: false,
        publications: BTreeMap::new(),
        stage: None,
        freeze: None,
        inline: None,
    }
}

/// A change of the request, and the word that is to be in the refusal.
type Case = (fn(&mut csi::CreateVolumeRequest), Option<&'static str>);

#[test]
fn a_name_stands_for_one_volume() {
    let cases: &[Case] = &[
        (|_| {}, None),
        (|r| r.capacity_range = None, None),
        (|r| r.capacity_range = range(1, 8 << 20), None),
        (
            |r| r.capacity_range = range((8 << 20) + 1, 0),
            Some("capacity_range"),
        ),
        (
            |r| r.capacity_range = range(1, (8 << 20) - 1),
            Some("capacity_range"),
        ),
        // Who names no filesystem means the one it has.
        (|r| r.volume_capabilities = vec![capability("", 1)], None),
        (
            |r| r.volume_capabilities = vec![capability("xfs", 1)],
            Some("capabilities"),
        ),
        (
            |r| r.volume_capabilities = vec![capability("ext4", 5)],
            Some("capabilities"),
        ),
        (
            |r| r.volume_capabilities[0].access_type = Some(AccessType::Block(BlockVolume {})),
            Some("capabilities"),
        ),
        (|r| r.parameters = map(&[("pool", "default")]), None),
        (|r| r.parameters = map(&[]), Some("differs in parameters")),
        (
            |r| r.parameters = map(&[("pool", "other")]),
            Some("differs in parameters"),
        ),
        (
            |r| r.mutable_parameters = map(&[("discard", "false")]),
            Some("mutable"),
        ),
        (
            |r| r.volume_content_source = from_volume(VolumeId::generate(PoolId::generate())),
            Some("volume_content_source"),
        ),
        (
            |r| {
                r.accessibility_requirements = Some(csi::TopologyRequirement {
                    requisite: vec![csi::Topology {
                        segments: map(&[("t/node", "n2")]),
                    }],
                    preferred: vec![],
                });
            },
            Some("accessible"),
        ),
    ];
    let existing = record(None);
    for (number, (change, expected)) in cases.iter().enumerate() {
        let mut request = request();
        change(&mut request);
        let order = Order::read(&request, &config()).unwrap();
        match (order.fits(&existing), expected) {
            (Ok(()), None) => {}
            (Err(why), Some(word)) => assert!(why.contains(word), "case {number}: {why}"),
            (got, _) => panic!("case {number}: {got:?}, not {expected:?}"),
        }
    }
    let inline = VolumeRecord {
        inline: Some("csi-x".to_owned()),
        ..existing
    };
    let order = Order::read(&request(), &config()).unwrap();
    assert!(order.fits(&inline).is_err());
}

#[test]
fn sources_are_compared_by_id() {
    let pool = PoolId::generate();
    let (volume, other) = (VolumeId::generate(pool), VolumeId::generate(pool));
    let snapshot = SnapshotId::generate(pool);
    let inline = format!("csi-{}", "a".repeat(64));
    let table = [
        (None, None, true),
        (from_volume(volume), Some(Source::Volume(volume)), true),
        (from_volume(other), Some(Source::Volume(volume)), false),
        (from_volume(volume), None, false),
        (from_volume(volume), Some(Source::Snapshot(snapshot)), false),
        (None, Some(Source::Volume(volume)), false),
        (from_volume(inline), Some(Source::Volume(volume)), true),
        (
            from(Type::Snapshot(SnapshotSource {
                snapshot_id: snapshot.to_string(),
            })),
            Some(Source::Snapshot(snapshot)),
            true,
        ),
    ];
    for (asked, recorded, expected) in table {
        let named = source(asked.as_ref()).unwrap();
        let got = same_source(named.as_ref(), recorded.as_ref());
        assert_eq!(got, expected, "{asked:?} {recorded:?}");
    }
}

#[test]
fn requests_that_break_the_rules_are_refused_by_field() {
    type Case = (fn(&mut csi::CreateVolumeRequest), &'static str);
    let cases: &[Case] = &[
        (|r| r.name.clear(), "name"),
        (|r| r.name = "a".repeat(129), "name"),
        (|r| r.name.push('\0'), "name"),
        (|r| r.volume_capabilities.clear(), "volume_capabilities"),
        (
            |r| r.capacity_range = range(-1, 0),
            "capacity_range.required_bytes",
        ),
        (
            |r| r.capacity_range = range(2, 1),
            "capacity_range.limit_bytes",
        ),
        (|r| r.parameters = map(&[("x", "y")]), "parameters[\"x\"]"),
        (
            |r| r.mutable_parameters = map(&[("pool", "y")]),
            "mutable_parameters[\"pool\"]",
        ),
        (
            |r| r.volume_content_source = Some(csi::VolumeContentSource { r#type: None }),
            "volume_content_source",
        ),
        (
            |r| r.volume_content_source = from_volume(""),
            "volume_content_source.volume.volume_id",
        ),
        (
            |r| r.accessibility_requirements = Some(csi::TopologyRequirement::default()),
            "accessibility_requirements",
        ),
    ];
    for (change, field) in cases {
        let mut request = request();
        change(&mut request);
        match Order::read(&request, &config()) {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, *field),
            other => panic!("{field}: {other:?}"),
        }
    }
    let mut request = request();
    request.volume_content_source = from_volume("../../x");
    assert!(matches!(
        Order::read(&request, &config()),
        Err(Error::NotFound(_))
    ));
}

#[test]
fn mutable_parameters_win_and_can_be_switched_off() {
    let mut request = request();
    request.parameters = map(&[("discard", "true"), ("readAheadKiB", "64")]);
    request.mutable_parameters = map(&[("discard", "false")]);
    let order = Order::read(&request, &config()).unwrap();
    assert_eq!(order.changes.discard, Some(false));
    assert_eq!(order.changes.read_ahead_kib, Some(64));
    let off = Config {
        modify: false,
        ..config()
    };
    assert!(matches!(
        Order::read(&request, &off),
        Err(Error::Invalid(_))
    ));
}
