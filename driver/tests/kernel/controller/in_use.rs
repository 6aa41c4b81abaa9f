//! Volumes that are staged while the controller is asked about them.

use hostloop_driver::kernel::Kernel;
use hostloop_proto::csi;

use super::rig::*;

/// What the kernel reads ahead on a device, in KiB.
fn read_ahead(minor: u32) -> u32 {
    let path = format!("/sys/block/loop{minor}/queue/read_ahead_kb");
    std::fs::read_to_string(path)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

fn discards(rig: &Rig, id: &str) -> bool {
    let mounts = rig.kernel.mounts().unwrap();
    let mount = mounts.at(&rig.staging(id)).unwrap();
    let says = |o: &String| o == "discard" || o.starts_with("discard=");
    mount.super_options.iter().any(says)
}

#[test]
fn a_mounted_volume_is_modified_as_it_is() {
    let rig = Rig::new();
    for fs in ["ext4", "btrfs"] {
        let id = rig.create(fs, &mount(fs), 16);
        rig.stage(&id, &mount(fs));
        let minor = rig.device(&id).minor;
        assert!(discards(&rig, &id), "{fs}: thin volumes give space back");
        std::fs::write(rig.staging(&id).join("file"), "data").unwrap();

        let off = [
            ("discard", "false"),
            ("directIO", "false"),
            ("readAheadKiB", "64"),
        ];
        rig.modify(&id, &off);
        assert!(!discards(&rig, &id), "{fs}");
        assert!(!rig.device(&id).direct_io, "{fs}");
        assert_eq!(read_ahead(minor), 64, "{fs}");
        assert!(
            rig.reasons(&id).is_empty(),
            "{fs}: nothing more was asked for"
        );

        rig.modify(&id, &[("discard", "true"), ("directIO", "true")]);
        assert!(discards(&rig, &id), "{fs}");
        assert!(rig.device(&id).direct_io, "{fs}");
        assert_eq!(read_ahead(minor), 64, "{fs}");
        let kept = std::fs::read_to_string(rig.staging(&id).join("file")).unwrap();
        assert_eq!(kept, "data");

        // And it comes back so.
        rig.modify(&id, &[("directIO", "false"), ("discard", "false")]);
        rig.unstage(&id);
        rig.stage(&id, &mount(fs));
        assert!(!rig.device(&id).direct_io && !discards(&rig, &id), "{fs}");
        assert_eq!(read_ahead(rig.device(&id).minor), 64, "{fs}");
    }
}

#[test]
fn what_xfs_can_not_change_while_it_is_mounted_waits() {
    let rig = Rig::new();
    let id = rig.create("v", &mount("xfs"), 300);
    rig.stage(&id, &mount("xfs"));
    let before = rig.record(&id).settings.clone();
    for parameters in [[("discard", "false")], [("provisioning", "thick")]] {
        let refused = rig.try_modify(&id, &parameters).unwrap_err();
        assert!(refused.to_string().contains("stop what uses"), "{refused}");
        assert_eq!(rig.record(&id).settings, before);
    }
    // What is so already, and what XFS has no part in, is done.
    rig.modify(&id, &[("discard", "true"), ("directIO", "false")]);
    assert!(!rig.device(&id).direct_io);
    rig.unstage(&id);
    rig.modify(&id, &[("discard", "false")]);
    rig.stage(&id, &mount("xfs"));
    assert!(!discards(&rig, &id));
}

#[test]
fn a_mounted_volume_becomes_thick_and_stays_so() {
    use std::os::unix::fs::MetadataExt;
    let rig = Rig::new();
    let id = rig.create("v", &mount("ext4"), 64);
    rig.stage(&id, &mount("ext4"));
    let allocated = || std::fs::metadata(rig.image(&id)).unwrap().blocks() * 512;
    assert!(allocated() < 32 << 20);
    rig.modify(&id, &[("provisioning", "thick")]);
    assert!(allocated() >= 64 << 20);
    assert!(!discards(&rig, &id));
    let file = rig.staging(&id).join("file");
    std::fs::write(&file, vec![7; 16 << 20]).unwrap();
    std::fs::remove_file(&file).unwrap();
    rig.unstage(&id);
    rig.stage(&id, &mount("ext4"));
    assert!(
        allocated() >= 64 << 20,
        "what was freed in it stays its own"
    );
}

#[test]
fn a_raw_volume_is_modified_as_it_is() {
    let rig = Rig::new();
    let id = rig.create("v", &block(), 16);
    rig.stage(&id, &block());
    let parameters = [
        ("discard", "false"),
        ("directIO", "false"),
        ("readAheadKiB", "32"),
    ];
    rig.modify(&id, &parameters);
    let device = rig.device(&id);
    assert!(!device.direct_io);
    assert_eq!(read_ahead(device.minor), 32);
    rig.unstage(&id);
}

#[test]
fn what_happens_to_a_staged_volume_is_seen() {
    let rig = Rig::new();
    let id = rig.create("v", &mount("ext4"), 16);
    rig.stage(&id, &mount("ext4"));
    assert!(rig.reasons(&id).is_empty());

    // Another process turns direct I/O off.
    let info = rig.device(&id);
    let device = rig.kernel.loop_reopen(&info).unwrap();
    rig.kernel.loop_set_direct_io(&device, false).unwrap();
    drop(device);
    assert_eq!(rig.reasons(&id), ["DirectIOLost"]);
    rig.modify(&id, &[("directIO", "true")]);
    assert!(rig.reasons(&id).is_empty());

    let request = csi::DeleteVolumeRequest {
        volume_id: id.clone(),
        ..Default::default()
    };
    let refused = rig.controller.delete_volume(request).unwrap_err();
    assert!(refused.to_string().contains("in use"), "{refused}");

    // Its image is deleted under it: all is lost but what is still attached.
    let away = rig.image(&id).with_extension("away");
    std::fs::hard_link(rig.image(&id), &away).unwrap();
    std::fs::remove_file(rig.image(&id)).unwrap();
    assert_eq!(rig.reasons(&id), ["ImageDeleted"]);
    std::fs::rename(&away, rig.image(&id)).unwrap();
    assert!(rig.reasons(&id).is_empty());

    // Its filesystem is unmounted, and its device goes with that.
    rig.kernel.unmount(&rig.staging(&id)).unwrap();
    assert_eq!(rig.reasons(&id), ["LoopDeviceLost"]);
    rig.stage(&id, &mount("ext4"));
    assert!(rig.reasons(&id).is_empty());
    rig.unstage(&id);
    assert!(rig.reasons(&id).is_empty());
}

#[test]
fn a_mounted_volume_grows_and_is_copied() {
    let rig = Rig::new();
    let id = rig.create("v", &mount("ext4"), 16);
    rig.stage(&id, &mount("ext4"));
    std::fs::write(rig.staging(&id).join("file"), "data").unwrap();
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: 48 * MI,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let grown = rig.controller.controller_expand_volume(request).unwrap();
    assert_eq!(grown.capacity_bytes, 48 * MI);
    assert!(grown.node_expansion_required);
    let request = csi::CreateSnapshotRequest {
        name: "s".to_owned(),
        source_volume_id: id.clone(),
        ..Default::default()
    };
    let snapshot = rig
        .controller
        .create_snapshot(request)
        .unwrap()
        .snapshot
        .unwrap();
    assert_eq!(snapshot.size_bytes, 48 * MI);
    let request = csi::CreateVolumeRequest {
        name: "copy".to_owned(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: 64 * MI,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![mount("")],
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(csi::volume_content_source::Type::Snapshot(
                csi::volume_content_source::SnapshotSource {
                    snapshot_id: snapshot.snapshot_id,
                },
            )),
        }),
        ..Default::default()
    };
    let copy = rig
        .controller
        .create_volume(request)
        .unwrap()
        .volume
        .unwrap();
    rig.stage(&copy.volume_id, &mount(""));
    let data = std::fs::read_to_string(rig.staging(&copy.volume_id).join("file")).unwrap();
    assert_eq!(data, "data");
    let usage = rig.kernel.usage(&rig.staging(&copy.volume_id)).unwrap();
    assert!(
        usage.total_bytes > 48 << 20,
        "the filesystem grew to the larger size"
    );
}
