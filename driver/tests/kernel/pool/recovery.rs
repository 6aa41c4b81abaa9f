//! Recovery after a process's death, on the real kernel.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_driver::kernel::FsType;
use hostloop_driver::storage::{
    About, Access, Capability, Format, FreezeIntent, Provisioning, Stage, VolumeHandle,
    VolumeRecord,
};

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
        let new = new("v", 320 * MI, Provisioning::Thin);
        let volume = world.pools().create_volume(&world.pool(), new).unwrap();
        let image = world
            .pool()
            .root()
            .join(format!("volumes/{}/image", volume.id));
        Planted {
            device: Some(Loop::attach(&image)),
            image,
            volume,
            world,
        }
    }

    fn device(&self) -> &Path {
        &self.device.as_ref().unwrap().device
    }

    fn minor(&self) -> u32 {
        let name = self.device().to_str().unwrap();
        name.strip_prefix("/dev/loop").unwrap().parse().unwrap()
    }

    fn record(&self) -> Arc<VolumeRecord> {
        let handle = VolumeHandle::Id(self.volume.id);
        self.world.pools().volume(&handle).unwrap()
    }

    fn update(&self, change: impl FnOnce(&mut VolumeRecord)) {
        self.world
            .pools()
            .update_volume(&self.volume.id, change)
            .unwrap();
    }

    /// Recovery detached it: nothing is left to clean up.
    fn forget_device(&mut self) {
        std::mem::forget(self.device.take());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.dir.path().join(name)
    }

    fn open(&mut self) {
        self.world.open();
    }
}

fn stage(path: PathBuf, capability: Capability, minor: u32) -> Stage {
    Stage {
        path,
        capability,
        minor: Some(minor),
        read_only_loops: BTreeMap::new(),
    }
}

fn raw() -> Capability {
    Capability {
        access: Access::Block,
        ..mounted()
    }
}

/// A mount that Drop removes if it still exists.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .args(["-q", arg(&self.0)])
            .status();
    }
}

#[test]
fn idle_devices_go_and_stagings_without_a_mount_end() {
    for staged in [false, true] {
        let mut planted = Planted::new();
        if staged {
            let stage = stage(planted.path("stage"), mounted(), planted.minor());
            planted.update(|r| r.stage = Some(stage));
        }
        planted.open();
        assert!(loop_of(&planted.image).is_empty());
        planted.forget_device();
        assert_eq!(planted.record().stage, None);
        assert!(planted.world.pools().findings().is_empty());
    }
}

#[test]
fn devices_in_use_and_strangers_stay() {
    let mut planted = Planted::new();
    let stranger_file = planted.path("stranger");
    File::create_new(&stranger_file)
        .unwrap()
        .set_len(MI)
        .unwrap();
    let stranger = Loop::attach(&stranger_file);
    run("mkfs.ext4", &["-q", arg(planted.device())]);
    let at = planted.path("somewhere");
    std::fs::create_dir(&at).unwrap();
    run("mount", &[arg(planted.device()), arg(&at)]);
    let mount = Mount(at.clone());
    planted.open();
    assert_eq!(loop_of(&planted.image).len(), 1);
    assert_eq!(loop_of(&stranger_file), [stranger.device.to_str().unwrap()]);
    let findings = planted.world.pools().findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].about, About::Volume(planted.volume.id));
    assert!(findings[0].what.contains(arg(&at)), "{findings:?}");
    drop(mount);
}

#[test]
fn a_raw_block_target_gets_its_device_back_at_its_minor() {
    let mut planted = Planted::new();
    planted.update(|r| r.format = Format::Raw);
    let target = planted.path("target");
    File::create_new(&target).unwrap();
    run("mount", &["--bind", arg(planted.device()), arg(&target)]);
    let bound = Mount(target.clone());
    let minor = planted.minor();
    let stage = stage(planted.path("stage"), raw(), minor);
    planted.update(|r| r.stage = Some(stage));
    open_rw(&target)
        .write_all_at(b"user's bytes", 8192)
        .unwrap();
    planted.world.close();
    // A bind of its node does not hold it. Another test may take the minor at this moment: then
    // there is nothing to be had back, and that is what must be said.
    run("losetup", &["-d", arg(planted.device())]);
    planted.forget_device();
    planted.open();
    let mine = loop_of(&planted.image);
    if mine.is_empty() {
        let findings = planted.world.pools().findings();
        assert!(findings[0].what.contains("another file"), "{findings:?}");
        return;
    }
    assert_eq!(mine, [format!("/dev/loop{minor}")]);
    planted.device = Some(Loop {
        device: format!("/dev/loop{minor}").into(),
    });
    let mut read = [0; 12];
    File::open(&target)
        .unwrap()
        .read_exact_at(&mut read, 8192)
        .unwrap();
    assert_eq!(&read, b"user's bytes");
    drop(bound);
}

#[test]
fn a_frozen_filesystem_is_thawed() {
    for fs in FsType::ALL {
        for unmounted in [false, true] {
            let mut planted = Planted::new();
            run(&format!("mkfs.{fs}"), &["-q", arg(planted.device())]);
            let at = planted.path("at");
            std::fs::create_dir(&at).unwrap();
            run("mount", &[arg(planted.device()), arg(&at)]);
            let mount = Mount(at.clone());
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
            planted.open();
            let findings = planted.world.pools().findings();
            assert!(
                findings.is_empty(),
                "{fs}, unmounted {unmounted}: {findings:?}"
            );
            assert_eq!(planted.record().freeze, None, "{fs}");
            if unmounted {
                // Unused now, and so it went; a frozen one would have stayed for ever.
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

#[test]
fn an_image_that_cannot_be_had_is_one_finding_and_no_more() {
    let mut planted = Planted::new();
    planted.device = None;
    std::fs::remove_file(&planted.image).unwrap();
    planted.update(|r| r.freeze = Some(FreezeIntent { since_ns: 1 }));
    planted.open();
    let findings = planted.world.pools().findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].what.contains("is missing"), "{findings:?}");
    planted
        .world
        .pools()
        .delete_volume(&planted.volume.id)
        .unwrap();
    assert!(planted.world.entries().is_empty());
}
