//! CreateVolume and DeleteVolume.

use tonic::Code;

use super::bench::*;
use crate::kernel::FsType;
use crate::storage::{Format, PoolId, Provisioning, VolumeId};
use hostloop_proto::csi;

#[test]
fn a_volume_is_made_once() {
    let bench = Bench::new();
    let first = bench.try_create(Bench::request("pvc-1")).unwrap();
    let again = bench.try_create(Bench::request("pvc-1")).unwrap();
    assert_eq!(first, again);
    assert_eq!(bench.volume_ids(), std::slice::from_ref(&first.volume_id));
    assert_eq!(first.capacity_bytes, 8 * MI);
    assert_eq!(first.accessible_topology, [here()]);
    assert!(first.volume_context.is_empty());
    let record = bench.record(&first.volume_id);
    assert_eq!(record.name, "pvc-1");
    assert_eq!(record.format, Format::None);
    // The name belongs to a volume with another request.
    let other = csi::CreateVolumeRequest {
        capacity_range: range(16 * MI, 0),
        ..Bench::request("pvc-1")
    };
    assert_code(bench.try_create(other), Code::AlreadyExists);
    assert_eq!(bench.volume_ids().len(), 1);
}

#[test]
fn the_class_says_where_and_how() {
    let bench = Bench::new();
    let volume = bench
        .try_create(csi::CreateVolumeRequest {
            parameters: map(&[
                ("kind", "other"),
                ("provisioning", "thick"),
                ("directIO", "false"),
                ("mkfsOptions", "-m 0"),
                ("readAheadKiB", "64"),
            ]),
            mutable_parameters: map(&[("directIO", "true")]),
            ..Bench::request("pvc-1")
        })
        .unwrap();
    let record = bench.record(&volume.volume_id);
    let pool = bench.controller.pools.with_id(record.id.pool()).unwrap();
    assert_eq!(pool.name(), "other");
    assert_eq!(record.mkfs_options, ["-m", "0"]);
    assert_eq!(record.settings.provisioning, Provisioning::Thick);
    assert_eq!(record.settings.read_ahead_kib, Some(64));
    assert!(record.settings.direct_io && !record.settings.discard);
}

#[test]
fn what_can_not_be_made_is_refused() {
    let bench = Bench::with(|plan| plan.options.max_volume_bytes = Some(1 << 30));
    bench.kernel.set_absent(FsType::Xfs);
    type Change = fn(&mut csi::CreateVolumeRequest);
    let cases: [(&str, Change, Code); 9] = [
        (
            "too large",
            |r| r.capacity_range = range((1 << 30) + 1, 0),
            Code::OutOfRange,
        ),
        (
            "no size at all",
            |r| r.capacity_range = range(0, 1),
            Code::OutOfRange,
        ),
        (
            "no such pool",
            |r| r.parameters = map(&[("pool", "x")]),
            Code::InvalidArgument,
        ),
        (
            "no tools",
            |r| r.volume_capabilities = vec![mount("xfs")],
            Code::InvalidArgument,
        ),
        (
            "below the filesystem's minimum",
            |r| {
                r.volume_capabilities = vec![mount("btrfs")];
                r.capacity_range = range(8 * MI, 64 * MI);
            },
            Code::OutOfRange,
        ),
        (
            "thick, and giving space back",
            |r| r.parameters = map(&[("provisioning", "thick"), ("discard", "true")]),
            Code::InvalidArgument,
        ),
        (
            "elsewhere",
            |r| r.accessibility_requirements = required(elsewhere()),
            Code::ResourceExhausted,
        ),
        (
            "from a snapshot that is none",
            |r| r.volume_content_source = from(of_snapshot("none")),
            Code::NotFound,
        ),
        (
            "from a missing volume",
            |r| {
                let id = VolumeId::generate(PoolId::generate());
                r.volume_content_source = from(of_volume(&id.to_string()));
            },
            Code::FailedPrecondition,
        ),
    ];
    for (what, change, expected) in cases {
        let mut request = Bench::request("pvc-1");
        change(&mut request);
        assert_eq!(code(bench.try_create(request)), expected, "{what}");
    }
    assert!(bench.volume_ids().is_empty());
    let mut request = Bench::request("pvc-1");
    request.accessibility_requirements = required(here());
    assert_code(bench.try_create(request), Code::Ok);
}

#[test]
fn a_full_pool_is_resource_exhausted() {
    let bench = Bench::with(|plan| plan.options.overcommit = 0.0);
    assert_code(
        bench.try_create(Bench::request("a")),
        Code::ResourceExhausted,
    );
}

#[test]
fn copies_are_at_least_as_large_and_like_their_source() {
    let bench = Bench::new();
    let source = bench
        .try_create(csi::CreateVolumeRequest {
            parameters: map(&[("provisioning", "thick")]),
            ..Bench::request("source")
        })
        .unwrap()
        .volume_id;
    bench.stage(&source, mount(""));
    let snapshot = bench.snapshot("s", &source).unwrap().snapshot_id;
    for (name, from_what) in [
        ("restored", of_snapshot(&snapshot)),
        ("clone", of_volume(&source)),
    ] {
        let copy = bench.create_from(name, from_what.clone()).unwrap();
        assert_eq!(copy.capacity_bytes, 8 * MI);
        assert_eq!(copy.content_source, from(from_what.clone()));
        let record = bench.record(&copy.volume_id);
        assert_eq!(record.format, Format::Done(FsType::Ext4));
        assert_eq!(
            record.settings.provisioning,
            Provisioning::Thick,
            "inherited"
        );
        let request = |range, fs| csi::CreateVolumeRequest {
            capacity_range: range,
            volume_capabilities: vec![mount(fs)],
            volume_content_source: from(from_what.clone()),
            ..Bench::request(&format!("{name}-other"))
        };
        let smaller = request(range(0, 4 * MI), "");
        assert_code(bench.try_create(smaller), Code::OutOfRange);
        let different = request(None, "btrfs");
        assert_code(bench.try_create(different), Code::InvalidArgument);
        let larger = bench.try_create(request(range(16 * MI, 0), "")).unwrap();
        assert_eq!(larger.capacity_bytes, 16 * MI);
    }
    // A repeated call does not need its source any more.
    let request = csi::DeleteSnapshotRequest {
        snapshot_id: snapshot.clone(),
        ..Default::default()
    };
    bench.controller.delete_snapshot(request).unwrap();
    assert_code(
        bench.create_from("restored", of_snapshot(&snapshot)),
        Code::Ok,
    );
    assert_code(
        bench.create_from("new", of_snapshot(&snapshot)),
        Code::NotFound,
    );
}

#[test]
fn a_volume_is_deleted_once_and_only_if_nobody_uses_it() {
    let bench = Bench::new();
    let id = bench.create("pvc-1");
    for gone in ["none", "../x", &id.to_uppercase(), &"v".repeat(100_000)] {
        assert_eq!(code(bench.delete(gone)), Code::Ok, "{gone}");
    }
    assert_field(bench.delete(""), "volume_id");
    // The volume may be on another node.
    assert_code(bench.delete(&foreign(&id)), Code::FailedPrecondition);

    let request = csi::ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: "n1".to_owned(),
        volume_capability: Some(mount("")),
        ..Default::default()
    };
    bench.controller.controller_publish_volume(request).unwrap();
    assert_code(bench.delete(&id), Code::FailedPrecondition);
    let request = csi::ControllerUnpublishVolumeRequest {
        volume_id: id.clone(),
        ..Default::default()
    };
    bench
        .controller
        .controller_unpublish_volume(request)
        .unwrap();

    bench.stage(&id, mount(""));
    assert_code(bench.delete(&id), Code::FailedPrecondition);
    assert_eq!(bench.volume_ids(), std::slice::from_ref(&id));

    bench.kernel.reboot();
    assert_code(bench.delete(&id), Code::Ok);
    assert!(!bench.entry(&id).exists());
    assert_code(bench.delete(&id), Code::Ok);
}

#[test]
fn what_was_published_before_attaching_was_switched_off_is_deleted() {
    let bench = Bench::with(|plan| plan.config.attach = false);
    let id = bench.create("pvc-1");
    let record = bench.record(&id);
    let publication = crate::storage::Publication {
        capability: record.capabilities[0].clone(),
        readonly: false,
    };
    let publish = |r: &mut crate::storage::VolumeRecord| {
        r.publications.insert("n1".to_owned(), publication);
    };
    bench
        .controller
        .pools
        .update_volume(&record.id, publish)
        .unwrap();
    assert_code(bench.delete(&id), Code::Ok);
}
