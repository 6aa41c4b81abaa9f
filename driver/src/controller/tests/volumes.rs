//! CreateVolume and DeleteVolume.

use hostloop_proto::csi;

use super::bench::*;
use crate::kernel::FsType;
use crate::storage::{Format, PoolId, Provisioning, VolumeId};

#[test]
fn create_volume_is_idempotent_by_name() {
    let bench = Bench::new();
    let first = bench.try_create(Bench::request("pvc-1")).unwrap();
    let again = bench.try_create(Bench::request("pvc-1")).unwrap();
    assert_eq!(first, again);
    assert_eq!(first.capacity_bytes, 8 * MI);
    assert_eq!(first.accessible_topology, [place("t/node=n1")]);
    assert!(first.volume_context.is_empty());
    let record = bench.record(&first.volume_id);
    assert_eq!(record.name, "pvc-1");
    assert_eq!(record.format, Format::None);
    // The name belongs to a volume with another request.
    let other =
        csi::CreateVolumeRequest { capacity_range: range(16 * MI, 0), ..Bench::request("pvc-1") };
    assert_answer(bench.try_create(other), "AlreadyExists");
    assert_eq!(bench.volume_ids(), [first.volume_id]);
}

#[test]
fn class_parameters_choose_the_pool_and_the_settings() {
    let bench = Bench::new();
    let text = "kind=other provisioning=thick directIO=false readAheadKiB=64";
    let mut request = Bench::request_with("pvc-1", text);
    let mkfs = ("mkfsOptions".to_owned(), "-m 0".to_owned());
    request.parameters.extend([mkfs]);
    request.mutable_parameters = pairs("directIO=true");
    let record = bench.record(bench.created(request));
    let pool = bench.controller.pools.with_id(record.id.pool()).unwrap();
    assert_eq!(pool.name(), "other");
    assert_eq!(record.mkfs_options, ["-m", "0"]);
    assert_eq!(record.settings.provisioning, Provisioning::Thick);
    assert_eq!(record.settings.read_ahead_kib, Some(64));
    assert!(record.settings.direct_io && !record.settings.discard);
}

#[test]
fn impossible_volumes_are_refused() {
    let bench = Bench::with(|plan| plan.options.max_volume_bytes = Some(1 << 30));
    bench.kernel.set_absent(FsType::Xfs);
    type Change = fn(&mut csi::CreateVolumeRequest);
    let cases: [(Change, &str); 10] = [
        (|r| r.capacity_range = range(GI + 1, 0), "OutOfRange"),
        (|r| r.capacity_range = range(0, 1), "OutOfRange"),
        (|r| r.parameters = pairs("pool=x"), "InvalidArgument"),
        // Its tools are missing.
        (|r| r.volume_capabilities = vec![mount("xfs")], "volume_capabilities"),
        // Less than the filesystem's minimum.
        (
            |r| {
                r.volume_capabilities = vec![mount("btrfs")];
                r.capacity_range = range(8 * MI, 64 * MI);
            },
            "OutOfRange",
        ),
        (|r| r.parameters = pairs("provisioning=thick discard=true"), "discard"),
        (|r| r.accessibility_requirements = required(["t/node=n2"]), "ResourceExhausted"),
        (|r| r.volume_content_source = from(of_snapshot("none")), "NotFound"),
        (
            |r| {
                let id = VolumeId::generate(PoolId::generate());
                r.volume_content_source = from(of_volume(id));
            },
            "FailedPrecondition",
        ),
        (|r| r.accessibility_requirements = required(["t/node=n1"]), "Ok"),
    ];
    for (change, expected) in cases {
        assert!(bench.volume_ids().is_empty());
        let mut request = Bench::request("pvc-1");
        change(&mut request);
        let got = answer(bench.try_create(request.clone()));
        assert_eq!(got, expected, "{request:?}");
    }
    let full = Bench::with(|plan| plan.options.overcommit = 0.0);
    let refused = full.try_create(Bench::request("a"));
    assert_answer(refused, "ResourceExhausted");
}

#[test]
fn copies_are_at_least_as_large_and_like_their_source() {
    let bench = Bench::new();
    let source = bench.created(Bench::request_with("source", "provisioning=thick"));
    bench.stage(&source);
    let snapshot = bench.snapshot("s", &source).unwrap().snapshot_id;
    for (name, from_what) in [("restored", of_snapshot(&snapshot)), ("clone", of_volume(&source))] {
        let copy = bench.create_from(name, from_what.clone()).unwrap();
        assert_eq!(copy.capacity_bytes, 8 * MI);
        assert_eq!(copy.content_source, from(from_what.clone()));
        let record = bench.record(&copy.volume_id);
        assert_eq!(record.format, Format::Done(FsType::Ext4));
        let provisioning = record.settings.provisioning;
        assert_eq!(provisioning, Provisioning::Thick, "inherited");
        let other = |range, fs| {
            bench.try_create(csi::CreateVolumeRequest {
                capacity_range: range,
                volume_capabilities: vec![mount(fs)],
                volume_content_source: from(from_what.clone()),
                ..Bench::request(&format!("{name}-other"))
            })
        };
        assert_answer(other(range(0, 4 * MI), ""), "OutOfRange");
        assert_answer(other(None, "btrfs"), "volume_content_source");
        let larger = other(range(16 * MI, 0), "").unwrap();
        assert_eq!(larger.capacity_bytes, 16 * MI);
    }
    // A repeated call does not need its source any more.
    bench.delete_snapshot(&snapshot).unwrap();
    for (name, expected) in [("restored", "Ok"), ("new", "NotFound")] {
        assert_answer(bench.create_from(name, of_snapshot(&snapshot)), expected);
    }
}

#[test]
fn a_volume_is_deleted_once_and_only_if_it_is_not_in_use() {
    let bench = Bench::new();
    let id = bench.create("pvc-1");
    for gone in ["none", "../x", &id.to_uppercase(), &"v".repeat(100_000)] {
        assert_eq!(answer(bench.delete(gone)), "Ok", "{gone}");
    }
    assert_answer(bench.delete(""), "volume_id");
    // The volume may be on another node.
    assert_answer(bench.delete(&foreign(&id)), "FailedPrecondition");

    bench.publish(&id).unwrap();
    assert_answer(bench.delete(&id), "FailedPrecondition");
    bench.unpublish(&id, "").unwrap();
    bench.stage(&id);
    assert_answer(bench.delete(&id), "FailedPrecondition");
    assert_eq!(bench.volume_ids(), std::slice::from_ref(&id));

    bench.kernel.reboot();
    bench.delete(&id).unwrap();
    assert!(!bench.entry(&id).exists());
    bench.delete(&id).unwrap();
}

#[test]
fn a_volume_published_before_attaching_was_switched_off_is_deleted() {
    let bench = Bench::with(|plan| plan.config.attach = false);
    let id = bench.create("pvc-1");
    let record = bench.record(&id);
    let publication =
        crate::storage::Publication { capability: record.capabilities[0].clone(), readonly: false };
    let publish = |r: &mut crate::storage::VolumeRecord| {
        r.publications.insert("n1".to_owned(), publication);
    };
    let pools = &bench.controller.pools;
    pools.update_volume(&record.id, publish).unwrap();
    bench.delete(&id).unwrap();
}
