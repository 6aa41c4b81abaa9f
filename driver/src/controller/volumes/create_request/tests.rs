use hostloop_proto::csi::volume_capability::access_mode::Mode;

use super::*;
use crate::controller::tests::bench::*;
use crate::controller::tests::{config, record};
use crate::storage::{PoolId, Settings, VolumeId};
use crate::testkit::THIN;

/// A request for 8 MiB of ext4.
fn request() -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_capabilities: vec![mount("ext4")],
        ..create_request_with("pvc-1", "pool=default csi.storage.k8s.io/pvc/name=a")
    }
}

fn from_volume(id: impl ToString) -> Option<csi::VolumeContentSource> {
    from(of_volume(id))
}

/// The record of the requested volume.
fn existing() -> VolumeRecord {
    let request = CreateRequest::read(&request(), &config()).unwrap();
    VolumeRecord {
        name: request.name.into(),
        capacity_bytes: 8 << 20,
        capabilities: request.capabilities.into_all().into(),
        parameters: request.parameters.into(),
        mutable_parameters: request.mutable_parameters.into(),
        settings: Settings {
            discard: true,
            ..THIN
        },
        ..record()
    }
}

type Change = fn(&mut csi::CreateVolumeRequest);

/// Reads the changed request.
fn read(change: Change, config: &Config) -> Result<CreateRequest> {
    let mut request = request();
    change(&mut request);
    CreateRequest::read(&request, config)
}

#[test]
fn a_request_fits_an_existing_volume_or_the_error_says_why_not() {
    // With an empty message, the request fits.
    let cases: [(Change, &str); 15] = [
        (|_| {}, ""),
        (|r| r.capacity_range = None, ""),
        (|r| r.capacity_range = range(1, 8 * MI), ""),
        (
            |r| r.capacity_range = range(8 * MI + 1, 0),
            "capacity_range",
        ),
        (
            |r| r.capacity_range = range(1, 8 * MI - 1),
            "capacity_range",
        ),
        // Without a filesystem, the request means the one that the volume has.
        (|r| r.volume_capabilities = vec![mount("")], ""),
        (
            |r| r.volume_capabilities = vec![mount("xfs")],
            "capabilities",
        ),
        (
            |r| r.volume_capabilities = vec![mount_as("ext4", Mode::MultiNodeMultiWriter)],
            "capabilities",
        ),
        (|r| r.volume_capabilities = vec![block()], "capabilities"),
        (|r| r.parameters = pairs("pool=default"), ""),
        (|r| r.parameters = pairs(""), "differs in parameters"),
        (
            |r| r.parameters = pairs("pool=other"),
            "differs in parameters",
        ),
        (|r| r.mutable_parameters = pairs("discard=false"), "mutable"),
        (
            |r| r.volume_content_source = from_volume(VolumeId::generate(PoolId::generate())),
            "volume_content_source",
        ),
        (
            |r| r.accessibility_requirements = required(["t/node=n2"]),
            "accessible",
        ),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let fits = read(change, &config()).unwrap().fits(&existing());
        assert_eq!(fits.is_ok(), expected.is_empty(), "case {number}: {fits:?}");
        let why = fits.err().unwrap_or_default();
        assert!(why.contains(expected), "case {number}: {why}");
    }
    let inline = VolumeRecord {
        inline: Some("csi-x".into()),
        ..existing()
    };
    assert!(read(|_| {}, &config()).unwrap().fits(&inline).is_err());
}

#[test]
fn sources_are_compared_by_id() {
    let pool = PoolId::generate();
    let (volume, other) = (VolumeId::generate(pool), VolumeId::generate(pool));
    let snapshot = SnapshotId::generate(pool);
    let inline = format!("csi-{}", "a".repeat(64));
    let (of_v, of_s) = (
        Some(Source::Volume(volume)),
        Some(Source::Snapshot(snapshot)),
    );
    for (requested, recorded, expected) in [
        (None, None, true),
        (from_volume(volume), of_v, true),
        (from_volume(other), of_v, false),
        (from_volume(volume), None, false),
        (from_volume(volume), of_s, false),
        (None, of_v, false),
        (from_volume(inline), of_v, true),
        (from(of_snapshot(snapshot)), of_s, true),
    ] {
        let named = source(requested.as_ref()).unwrap();
        let got = same_source(named.as_ref(), recorded.as_ref());
        assert_eq!(got, expected, "{requested:?} {recorded:?}");
    }
}

#[test]
fn invalid_requests_are_refused_by_field() {
    let cases: [(Change, &str); 12] = [
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
        (|r| r.parameters = pairs("x=y"), r#"parameters["x"]"#),
        (
            |r| r.mutable_parameters = pairs("pool=y"),
            r#"mutable_parameters["pool"]"#,
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
            |r| r.accessibility_requirements = required([]),
            "accessibility_requirements",
        ),
        (
            |r| r.volume_content_source = from_volume("../../x"),
            "NotFound",
        ),
    ];
    for (change, expected) in cases {
        assert_answer(read(change, &config()), expected);
    }
}

#[test]
fn mutable_parameters_win_and_can_be_switched_off() {
    let change: Change = |r| {
        r.parameters = pairs("discard=true readAheadKiB=64");
        r.mutable_parameters = pairs("discard=false");
    };
    let request = read(change, &config()).unwrap();
    assert_eq!(request.changes.discard, Some(false));
    assert_eq!(request.changes.read_ahead_kib, Some(64));
    let off = Config {
        modify: false,
        ..config()
    };
    assert_answer(read(change, &off), "mutable_parameters");
}
