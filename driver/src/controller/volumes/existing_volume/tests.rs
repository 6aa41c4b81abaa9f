use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;

use super::*;
use crate::controller::tests::bench::*;
use crate::controller::tests::{config, record};
use crate::storage::{PoolId, Settings, SnapshotId, VolumeId};
use crate::testkit::THIN;

/// The record of the requested volume.
fn existing() -> VolumeRecord {
    let request = CreateRequest::read(&ext4_request(), &config()).unwrap();
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

#[test]
fn a_request_fits_an_existing_volume_or_the_error_says_why_not() {
    // With an empty message, the request fits.
    let cases: [(RequestChange, &str); 15] = [
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
        let request = CreateRequest::read(&changed_request(change), &config()).unwrap();
        let fits = request.fits(&existing());
        assert_eq!(fits.is_ok(), expected.is_empty(), "case {number}: {fits:?}");
        let why = fits.err().unwrap_or_default();
        assert!(why.contains(expected), "case {number}: {why}");
    }
    let inline = VolumeRecord {
        inline: Some("csi-x".into()),
        ..existing()
    };
    let request = CreateRequest::read(&ext4_request(), &config()).unwrap();
    assert!(request.fits(&inline).is_err());
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
        let request = csi::CreateVolumeRequest {
            volume_content_source: requested,
            ..ext4_request()
        };
        let named = CreateRequest::read(&request, &config()).unwrap().source;
        let got = same_source(named.as_ref(), recorded.as_ref());
        assert_eq!(got, expected, "{named:?} {recorded:?}");
    }
}
