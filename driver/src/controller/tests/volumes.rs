//! CreateVolume and DeleteVolume.

use hostloop_proto::csi;

use super::bench::*;
use crate::controller::{Config, Controller};
use crate::kernel::{Error, FsType, LoopDevices};
use crate::storage::{Format, Freed, Provisioning};

#[test]
fn class_parameters_choose_the_pool_and_the_settings() {
    let bench = Bench::new();
    let text = "kind=other provisioning=thick directIO=false readAheadKiB=64";
    let mut request = create_request_with("pvc-1", text);
    let mkfs = ("mkfsOptions".to_owned(), "-m 0".to_owned());
    request.parameters.extend([mkfs]);
    request.mutable_parameters = pairs("directIO=true");
    let record = bench.record(bench.created(request));
    let pool = bench.controller.pools.with_id(record.id.pool()).unwrap();
    assert_eq!(pool.name(), "other");
    assert_eq!(*record.mkfs_options, ["-m", "0"]);
    assert_eq!(record.settings.provisioning, Provisioning::Thick);
    assert_eq!(record.settings.read_ahead_kib, Some(64));
    assert!(record.settings.direct_io && !record.settings.discard);
}

#[test]
fn a_fault_of_a_class_needs_the_flag() {
    let request = || create_request_with("pvc-1", "fault=gone,for=5m");
    let strict = Bench::with(|plan| plan.config.faults = false);
    assert!(strict.controller.refuses_volume(&request()));
    let refused = strict.try_create(request()).unwrap_err();
    assert!(refused.to_string().contains("--enable-faults"), "{refused}");
    assert_answer::<()>(Err(refused), r#"parameters["fault"]"#);
    assert!(strict.volume_ids().is_empty());

    let bench = Bench::new();
    let wrong = create_request_with("pvc-1", "fault=gone,for=25h");
    assert_answer(bench.try_create(wrong), r#"parameters["fault"]"#);
    let id = bench.created(request());
    assert_eq!(bench.record(id.clone()).fault, None, "no pod uses it yet");

    // The call was answered before, and only the answer was lost.
    let config = Config {
        faults: false,
        ..bench.controller.config.clone()
    };
    let strict = Controller::new(bench.controller.pools.clone(), config);
    let again = strict.create_volume(request()).unwrap();
    assert_eq!(again.volume.unwrap().volume_id, id);
}

#[test]
fn a_fault_disk_needs_the_flag_and_limits_need_a_fault_disk() {
    let strict = Bench::with(|plan| plan.config.faults = false);
    let request = create_request_with("pvc-1", "faultDisk=true");
    assert!(strict.controller.refuses_volume(&request));
    let refused = strict.try_create(request).unwrap_err();
    assert!(refused.to_string().contains("--enable-faults"), "{refused}");
    assert_answer::<()>(Err(refused), r#"parameters["faultDisk"]"#);
    strict.created(create_request_with("pvc-1", "faultDisk=false"));

    let bench = Bench::new();
    for (text, field) in [
        (
            "faultDisk=true faultDiskCache=4096",
            r#"parameters["faultDiskCache"]"#,
        ),
        ("faultDiskCache=1048576", r#"parameters["faultDiskCache"]"#),
        ("faultDisk=true riops=1", r#"parameters["riops"]"#),
        ("wbps=1048576", "parameters"),
        ("fault=eio", r#"parameters["fault"]"#),
    ] {
        let request = create_request_with("pvc-1", text);
        assert_answer(bench.try_create(request), field);
    }
    let text = "faultDisk=true faultDiskCache=1048576 wiops=100";
    let id = bench.created(create_request_with("pvc-1", text));
    bench.modify(&id, "wiops=0 rbps=2097152").unwrap();
    let record = bench.record(id);
    let disk = record.fault_disk.as_deref().unwrap();
    assert_eq!(disk.cache_bytes, 1 << 20);
    assert_eq!((disk.limits.wiops, disk.limits.rbps), (None, Some(2 << 20)));
    let plain = bench.created(create_request_with("pvc-2", "pool=default"));
    assert_answer(bench.modify(&plain, "wiops=100"), "mutable_parameters");
}

#[test]
fn a_volume_that_this_node_can_not_make_is_refused() {
    let bench = Bench::with(|plan| plan.options.max_volume_bytes = Some(1 << 30));
    bench.kernel.set_absent(FsType::Xfs);
    type Change = fn(&mut csi::CreateVolumeRequest);
    let cases: [(Change, &str); 4] = [
        (|r| r.capacity_range = range(GI + 1, 0), "OutOfRange"),
        // Its tools are missing.
        (
            |r| r.volume_capabilities = vec![mount("xfs")],
            "volume_capabilities",
        ),
        // Less than the filesystem's minimum.
        (
            |r| {
                r.volume_capabilities = vec![mount("btrfs")];
                r.capacity_range = range(8 * MI, 64 * MI);
            },
            "OutOfRange",
        ),
        (
            |r| r.parameters = pairs("provisioning=thick discard=true"),
            "discard",
        ),
    ];
    for (change, expected) in cases {
        let mut request = create_request("pvc-1");
        change(&mut request);
        assert_answer(bench.try_create(request), expected);
    }
    assert!(bench.volume_ids().is_empty());
    let full = Bench::with(|plan| plan.options.overcommit = 0.0);
    let refused = full.try_create(create_request("a"));
    assert_answer(refused, "ResourceExhausted");
}

/// A table allows options by name; only mkfs knows which values make sense.
#[test]
fn options_that_mkfs_refuses_name_their_parameter() {
    let bench = Bench::new();
    let with_options = || {
        let mut request = create_request("a");
        request.parameters = map(&[("mkfsOptions", "-i 1")]);
        request
    };
    for (code, request, expected) in [
        (Some(1), create_request("a"), "Internal"),
        (Some(1), with_options(), "parameters[\"mkfsOptions\"]"),
        // Not installed, or killed.
        (None, with_options(), "Internal"),
    ] {
        bench.kernel.hook("mkfs", move |_| {
            let (tool, path) = ("mkfs.ext4".to_owned(), "image".into());
            Err(Error::Tool {
                tool,
                path,
                code,
                message: "bad ratio".to_owned(),
            })
        });
        assert_answer(bench.try_create(request), expected);
    }
    assert!(bench.volume_ids().is_empty());
}

/// The mount of a new filesystem with a class's options leaves nothing, whatever it answers.
#[test]
fn a_filesystem_that_cannot_be_mounted_names_its_parameter() {
    let bench = Bench::new();
    let request = |options: &str| {
        let mut request = create_request("a");
        request.parameters = map(&[("mkfsOptions", options)]);
        request
    };
    bench.kernel.hook("mount", |device| {
        let why = "Deprecated V4 format".to_owned();
        Err(Error::NotMountable {
            path: device.to_owned(),
            why,
        })
    });
    assert_answer(
        bench.try_create(request("-m 0")),
        "parameters[\"mkfsOptions\"]",
    );
    bench.kernel.hook("mount", |device| {
        Err(Error::errno("mount", device, libc::EIO))
    });
    assert_answer(bench.try_create(request("-m 0")), "Internal");
    bench.kernel.fail("loop.attach", 1, libc::EBUSY);
    assert_answer(bench.try_create(request("-m 0")), "Aborted");
    assert!(bench.volume_ids().is_empty());
    assert_eq!(bench.kernel.loops().unwrap(), []);

    bench.kernel.behave();
    bench.kernel.take_effects();
    bench.try_create(request("-m 0")).unwrap();
    let effects = bench.kernel.take_effects();
    assert_eq!(effects, ["mkfs", "loop.attach", "mount"]);
    assert_eq!(bench.kernel.loops().unwrap(), []);
    bench.created(create_request("without options"));
    assert_eq!(bench.kernel.take_effects(), ["mkfs"]);
}

/// An earlier version accepted them, and a copy needs no mkfs.
#[test]
fn a_copy_of_a_filesystem_ignores_mkfs_options() {
    let bench = Bench::new();
    let source = bench.created(create_request("source"));
    let mut request = create_request("copy");
    request.parameters = map(&[("mkfsOptions", "-O fast_commit")]);
    assert_answer(
        bench.try_create(request.clone()),
        "parameters[\"mkfsOptions\"]",
    );
    request.volume_content_source = from(of_volume(&source));
    bench.try_create(request).unwrap();
}

#[test]
fn copies_are_at_least_as_large_and_like_their_source() {
    let bench = Bench::new();
    let source = bench.created(create_request_with("source", "provisioning=thick"));
    bench.stage(&source);
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
        let provisioning = record.settings.provisioning;
        assert_eq!(provisioning, Provisioning::Thick, "inherited");
        let other = |range, fs| {
            bench.try_create(csi::CreateVolumeRequest {
                capacity_range: range,
                volume_capabilities: vec![mount(fs)],
                volume_content_source: from(from_what.clone()),
                ..create_request(&format!("{name}-other"))
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
fn names_of_claims_and_snapshots_change_no_answer() {
    let bench = Bench::new();
    let name = "csi.storage.k8s.io/pvc/namespace=a csi.storage.k8s.io/pvc/name=data";
    // The flag that adds them may have been set, changed or removed since the first call.
    for (id, first, then) in [("v", "", name), ("w", name, "")] {
        let create = |parameters| {
            bench
                .try_create(create_request_with(id, parameters))
                .unwrap()
        };
        let volume = create(first);
        assert!(volume.volume_context.is_empty());
        assert_eq!(create(then), volume);
        let snapshot = |parameters| {
            let request = csi::CreateSnapshotRequest {
                source_volume_id: volume.volume_id.clone(),
                name: id.to_owned(),
                parameters: pairs(parameters),
                ..Default::default()
            };
            bench.controller.create_snapshot(request).unwrap()
        };
        assert_eq!(snapshot(first), snapshot(then));
        let group = |parameters| {
            let request = csi::CreateVolumeGroupSnapshotRequest {
                name: id.to_owned(),
                source_volume_ids: vec![volume.volume_id.clone()],
                parameters: pairs(parameters),
                ..Default::default()
            };
            bench
                .controller
                .create_volume_group_snapshot(request)
                .unwrap()
        };
        assert_eq!(group(first), group(then));
    }
}

#[test]
fn a_volume_is_deleted_only_if_it_is_not_in_use() {
    let bench = Bench::new();
    let id = bench.create("pvc-1");
    bench.publish(&id).unwrap();
    assert_answer(bench.delete(&id), "FailedPrecondition");
    bench.unpublish(&id, "").unwrap();
    bench.stage(&id);
    assert_answer(bench.delete(&id), "FailedPrecondition");
    assert_eq!(bench.volume_ids(), std::slice::from_ref(&id));

    bench.kernel.reboot();
    bench.delete(&id).unwrap();
    assert!(!bench.entry(&id).exists());
}

/// The device's last user may detach it without a call of the driver.
#[test]
fn the_end_of_a_device_in_the_way_of_a_deletion_is_announced() {
    let bench = Bench::new();
    let pools = &bench.node.pools;
    let (free, freed) = std::sync::mpsc::channel();
    pools.freed().listen(move |what| free.send(what).unwrap());
    let (id, other) = (bench.create("a"), bench.create("b"));
    bench.stage(&id);
    bench.stage(&other);
    let minor = bench.device(&id).minor;
    assert_answer(bench.delete(&id), "FailedPrecondition");
    pools.announce_detached(Some(&[minor]));
    assert!(
        freed.try_recv().is_err(),
        "the device still holds the image"
    );
    // Devices may change together, and the minor may have another image by then.
    bench.unstage(&id, &id).unwrap();
    pools.announce_detached(Some(&[minor + 1]));
    assert!(freed.try_recv().is_err(), "another device changed");
    pools.announce_detached(None);
    assert_eq!(freed.try_recv(), Ok(Freed::Volume(id.clone())));
    pools.announce_detached(None);
    assert!(freed.try_recv().is_err(), "it is announced once");
    bench.delete(&id).unwrap();
}

#[test]
fn a_volume_published_before_attaching_was_switched_off_is_deleted() {
    let bench = Bench::with(|plan| plan.config.attach = false);
    let id = bench.create("pvc-1");
    bench.publish_to_node(bench.record(&id).id, false);
    bench.delete(&id).unwrap();
}
