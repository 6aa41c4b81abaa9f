//! Volumes that are staged while the controller is asked about them.

use std::path::PathBuf;

use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{Filesystems, LoopDevices, LoopInfo, Mounts};
use hostloop_proto::csi;

use crate::testkit::{
    Rig, block, create_request, create_request_for, from, mount, of_snapshot, range,
};

const MI: i64 = 1 << 20;

/// A staged volume.
struct Staged {
    rig: Rig<Linux>,
    id: String,
    capability: csi::VolumeCapability,
}

impl Staged {
    fn new(capability: csi::VolumeCapability, mib: i64) -> Staged {
        let rig = Rig::new();
        let request = csi::CreateVolumeRequest {
            capacity_range: range(mib * MI, 0),
            ..create_request_for("v", capability.clone())
        };
        let id = rig.created(request);
        let volume = Staged {
            rig,
            id,
            capability,
        };
        volume.stage();
        volume
    }

    fn stage(&self) {
        self.rig
            .stage(&self.id, &self.id, &self.capability)
            .unwrap();
    }

    fn unstage(&self) {
        self.rig.unstage_patiently(&self.id, &self.id);
        self.rig.assert_detached(&self.id);
    }

    fn modify(&self, parameters: &str) {
        self.rig.modify(&self.id, parameters).unwrap();
    }

    fn device(&self) -> LoopInfo {
        self.rig.device(&self.id)
    }

    fn image(&self) -> PathBuf {
        self.rig.path("volumes").join(&self.id).join("image")
    }

    /// A file in the volume's filesystem.
    fn file(&self) -> PathBuf {
        self.rig.staging(&self.id).join("file")
    }

    /// The read-ahead of the loop device, in KiB.
    fn read_ahead(&self) -> u32 {
        let path = format!("/sys/block/loop{}/queue/read_ahead_kb", self.device().minor);
        let text = std::fs::read_to_string(path).unwrap();
        text.trim().parse().unwrap()
    }

    /// True if the mounted filesystem discards freed space.
    fn discards(&self) -> bool {
        let mounts = self.rig.kernel.mounts().unwrap();
        let mount = mounts.at(&self.rig.staging(&self.id)).unwrap();
        let says = |o: &str| o == "discard" || o.starts_with("discard=");
        mount.super_options.iter().any(says)
    }

    /// The reasons of the volume's problems.
    fn problems(&self) -> Vec<String> {
        let health = self.rig.health(&self.id).unwrap();
        health.into_iter().map(|(_, reason)| reason).collect()
    }
}

#[test]
fn a_mounted_volume_is_modified_at_once() {
    for fs in ["ext4", "btrfs"] {
        let volume = Staged::new(mount(fs), 16);
        assert!(volume.discards(), "{fs}: the default of thin volumes");
        std::fs::write(volume.file(), "data").unwrap();

        volume.modify("discard=false directIO=false readAheadKiB=64");
        assert!(!volume.discards() && !volume.device().direct_io, "{fs}");
        assert_eq!(volume.read_ahead(), 64, "{fs}");
        assert!(volume.problems().is_empty(), "{fs}: the class asks for it");

        volume.modify("discard=true directIO=true");
        assert!(volume.discards() && volume.device().direct_io, "{fs}");
        assert_eq!(volume.read_ahead(), 64, "{fs}");
        assert_eq!(std::fs::read(volume.file()).unwrap(), b"data");

        // The next staging uses the same settings.
        volume.modify("directIO=false discard=false");
        volume.unstage();
        volume.stage();
        assert!(!volume.discards() && !volume.device().direct_io, "{fs}");
        assert_eq!(volume.read_ahead(), 64, "{fs}");
        volume.unstage();
    }
}

#[test]
fn a_mounted_xfs_can_not_change_discard() {
    let volume = Staged::new(mount("xfs"), 300);
    let rig = &volume.rig;
    let before = rig.record(&volume.id).settings.clone();
    for parameters in ["discard=false", "provisioning=thick directIO=false"] {
        let refused = rig.modify(&volume.id, parameters).unwrap_err();
        assert!(refused.to_string().contains("stop what uses"), "{refused}");
        assert_eq!(rig.record(&volume.id).settings, before);
        assert!(volume.device().direct_io);
    }
    // Current settings, and those of the device alone, are allowed.
    volume.modify("discard=true directIO=false");
    assert!(!volume.device().direct_io);
    volume.unstage();
    volume.modify("discard=false");
    volume.stage();
    assert!(!volume.discards());
}

#[test]
fn a_mounted_volume_becomes_thick_and_stays_so() {
    use std::os::unix::fs::MetadataExt;
    let volume = Staged::new(mount("ext4"), 64);
    let allocated = || std::fs::metadata(volume.image()).unwrap().blocks() * 512;
    assert!(allocated() < 32 << 20);
    volume.modify("provisioning=thick");
    assert!(allocated() >= 64 << 20);
    assert!(!volume.discards());
    std::fs::write(volume.file(), vec![7; 16 << 20]).unwrap();
    std::fs::remove_file(volume.file()).unwrap();
    volume.unstage();
    volume.stage();
    assert!(allocated() >= 64 << 20, "freed blocks stay allocated");
}

#[test]
fn a_raw_volume_is_modified_at_once() {
    let volume = Staged::new(block(), 16);
    volume.modify("discard=false directIO=false readAheadKiB=32");
    assert!(!volume.device().direct_io);
    assert_eq!(volume.read_ahead(), 32);
    volume.unstage();
}

#[test]
fn problems_of_a_staged_volume_are_reported() {
    let volume = Staged::new(mount("ext4"), 16);
    let rig = &volume.rig;
    assert!(volume.problems().is_empty());

    // Another process turns direct I/O off.
    let device = rig.kernel.loop_reopen(&volume.device()).unwrap();
    rig.kernel.loop_set_direct_io(&device, false).unwrap();
    drop(device);
    assert_eq!(volume.problems(), ["DirectIOLost"]);
    volume.modify("directIO=true");
    assert!(volume.problems().is_empty());

    let refused = rig.delete(&volume.id).unwrap_err();
    assert!(refused.to_string().contains("in use"), "{refused}");

    // The image is deleted while the loop device is attached.
    let away = volume.image().with_extension("away");
    std::fs::hard_link(volume.image(), &away).unwrap();
    std::fs::remove_file(volume.image()).unwrap();
    assert_eq!(volume.problems(), ["ImageDeleted"]);
    std::fs::rename(&away, volume.image()).unwrap();
    assert!(volume.problems().is_empty());

    // The unmount of the filesystem also detaches the device.
    rig.kernel.unmount(&rig.staging(&volume.id)).unwrap();
    rig.assert_detached(&volume.id);
    assert_eq!(volume.problems(), ["LoopDeviceLost"]);
    volume.stage();
    assert!(volume.problems().is_empty());
    volume.unstage();
    assert!(volume.problems().is_empty());
}

#[test]
fn a_mounted_volume_grows_and_is_copied() {
    let volume = Staged::new(mount("ext4"), 16);
    let rig = &volume.rig;
    std::fs::write(volume.file(), "data").unwrap();
    let grown = rig.grow(&volume.id, range(48 * MI, 0)).unwrap();
    assert_eq!(grown, 48 * MI);
    let raw = rig.grow_as(&volume.id, range(64 * MI, 0), Some(block()));
    assert!(raw.unwrap_err().to_string().contains("volume_capability"));
    let snapshot = rig.snapshot("s", &volume.id).unwrap();
    assert_eq!(snapshot.size_bytes, 48 * MI);
    let copy = rig.created(csi::CreateVolumeRequest {
        capacity_range: range(64 * MI, 0),
        volume_capabilities: vec![mount("")],
        volume_content_source: from(of_snapshot(snapshot.snapshot_id)),
        ..create_request("copy")
    });
    rig.stage(&copy, &copy, &mount("")).unwrap();
    let at = rig.staging(&copy);
    assert_eq!(std::fs::read(at.join("file")).unwrap(), b"data");
    let usage = rig.kernel.usage(&at).unwrap();
    let total = usage.total_bytes;
    assert!(total > 48 << 20, "the filesystem has only {total} bytes");
}
