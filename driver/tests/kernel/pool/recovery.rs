//! Recovery after a process's death, on the real kernel.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_driver::kernel::FsType;
use hostloop_driver::storage::{About, Capability, Format, FreezeIntent, Stage, VolumeRecord};

use super::support::*;

/// A world with one volume, and the volume's image attached by hand.
struct Planted {
    device: Option<Loop>,
    image: PathBuf,
    volume: Arc<VolumeRecord>,
    world: World,
}

impl Planted {
    fn new() -> Planted {
        let mut world = World::new(&["p=DIR/p"]);
        world.open();
        let volume = world.create(thin("v", 320 * MI));
        let image = world.path(format!("volumes/{}/image", volume.id));
        Planted { device: Some(Loop::attach(&image)), image, volume, world }
    }

    fn device(&self) -> &Path {
        &self.device.as_ref().unwrap().device
    }

    fn minor(&self) -> u32 {
        let name = self.device().to_str().unwrap();
        name.strip_prefix("/dev/loop").unwrap().parse().unwrap()
    }

    fn record(&self) -> Arc<VolumeRecord> {
        self.world.volume(self.volume.id)
    }

    fn update(&self, change: impl FnOnce(&mut VolumeRecord)) {
        self.world.update(self.volume.id, change);
    }

    /// Mounts the device, until the mount is dropped.
    fn mount(&self, name: &str) -> Mount {
        let at = self.path(name);
        std::fs::create_dir(&at).unwrap();
        run("mount", &[arg(self.device()), arg(&at)]);
        Mount(at)
    }

    /// Recovery detached it: nothing is left to clean up.
    fn forget_device(&mut self) {
        std::mem::forget(self.device.take());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.dir.path().join(name)
    }

    /// Opens the pools again; the description of the only finding, or an empty one.
    fn finding(&mut self) -> String {
        let mut findings = self.world.open().findings();
        assert!(findings.len() < 2, "{findings:?}");
        let finding = findings.pop();
        assert!(finding.iter().all(|f| f.about == About::Volume(self.volume.id)));
        finding.map(|f| f.what).unwrap_or_default()
    }
}

fn stage(path: PathBuf, capability: Capability, minor: u32) -> Stage {
    Stage { path, capability, minor: Some(minor), read_only_loops: BTreeMap::new() }
}

/// A mount that Drop removes if it still exists.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").args(["-q", arg(&self.0)]).status();
    }
}

#[test]
fn idle_devices_are_detached_and_stagings_without_a_mount_end() {
    for staged in [false, true] {
        let mut planted = Planted::new();
        if staged {
            let stage = stage(planted.path("stage"), mounted(), planted.minor());
            planted.update(|r| r.stage = Some(stage));
        }
        assert_eq!(planted.finding(), "");
        assert!(loop_of(&planted.image).is_empty());
        planted.forget_device();
        assert_eq!(planted.record().stage, None);
    }
}

#[test]
fn devices_in_use_and_foreign_ones_stay() {
    let mut planted = Planted::new();
    let foreign_file = planted.path("foreign");
    sparse(&foreign_file, MI);
    let foreign = Loop::attach(&foreign_file);
    run("mkfs.ext4", &["-q", arg(planted.device())]);
    let mount = planted.mount("somewhere");
    let finding = planted.finding();
    assert!(finding.contains(arg(&mount.0)), "{finding}");
    assert_eq!(loop_of(&planted.image).len(), 1);
    assert_eq!(loop_of(&foreign_file), [foreign.device.to_str().unwrap()]);
}

#[test]
fn a_raw_block_target_gets_its_device_back_at_its_minor() {
    let mut planted = Planted::new();
    planted.update(|r| r.format = Format::Raw);
    let target = planted.path("target");
    File::create_new(&target).unwrap();
    run("mount", &["--bind", arg(planted.device()), arg(&target)]);
    let _bound = Mount(target.clone());
    let minor = planted.minor();
    let stage = stage(planted.path("stage"), raw(), minor);
    planted.update(|r| r.stage = Some(stage));
    let bytes = b"user's bytes";
    open_rw(&target).write_all_at(bytes, 8192).unwrap();
    planted.world.close();
    // A bind of its node does not hold it. Another test may take the minor at this moment: the
    // device can't be attached there then, and recovery must report that.
    run("losetup", &["-d", arg(planted.device())]);
    planted.forget_device();
    let finding = planted.finding();
    let mine = loop_of(&planted.image);
    if mine.is_empty() {
        assert!(finding.contains("another file"), "{finding}");
        return;
    }
    assert_eq!(mine, [format!("/dev/loop{minor}")]);
    planted.device = Some(Loop { device: format!("/dev/loop{minor}").into() });
    let mut read = [0; 12];
    open_rw(&target).read_exact_at(&mut read, 8192).unwrap();
    assert_eq!(&read, bytes);
}

#[test]
fn a_frozen_filesystem_is_thawed() {
    for fs in FsType::ALL {
        for unmounted in [false, true] {
            let mut planted = Planted::new();
            run(&format!("mkfs.{fs}"), &["-q", arg(planted.device())]);
            let mount = planted.mount("at");
            let at = mount.0.clone();
            let stage = stage(at.clone(), mounted(), planted.minor());
            planted.update(|r| {
                r.stage = Some(stage);
                r.format = Format::Done(fs);
                r.freeze = Some(FreezeIntent { since_ns: 1 });
            });
            run("fsfreeze", &["--freeze", arg(&at)]);
            if unmounted {
                run("umount", &[arg(&at)]);
            }
            assert_eq!(planted.finding(), "", "{fs}, unmounted {unmounted}");
            assert_eq!(planted.record().freeze, None, "{fs}");
            if unmounted {
                // Recovery detached the unused device; a frozen filesystem would hold it.
                assert!(loop_of(&planted.image).is_empty(), "{fs}");
                planted.forget_device();
            } else {
                std::fs::write(at.join("written"), "again").unwrap();
                assert!(planted.record().stage.is_some());
            }
            drop(mount);
        }
    }
}
