//! Other programs change mounts and loop devices between any two calls. A driver that follows the
//! kernel's notices must do the same as one that reads everything for each call.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostloop_driver::kernel::linux::{Linux, MountQueries};
use hostloop_driver::kernel::{Filesystems, FsType, LoopInfo, Mounts};
use hostloop_driver::storage::{Access, VolumeHandle, VolumeId};
use hostloop_proto::csi;
use rstest::rstest;

use super::Rig;
use crate::testkit::{
    Configs, MI, PATIENCE, TestKernel, assert_written, capability, code, ext4, write,
};
use crate::tools::{arg, attach_late, command, detach, own_namespace, run, sparse};

/// A call of a volume's life.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Stage,
    Publish,
    PublishReadOnly,
    PublishAgain,
    Stats,
    Snapshot,
    Expand,
    Unpublish,
    UnpublishReadOnly,
    Unstage,
    Delete,
}

const LIFE: [Call; 11] = [
    Call::Stage,
    Call::Publish,
    Call::PublishReadOnly,
    Call::PublishAgain,
    Call::Stats,
    Call::Snapshot,
    Call::Expand,
    Call::Unpublish,
    Call::UnpublishReadOnly,
    Call::Unstage,
    Call::Delete,
];

/// Calls that change nothing beneath the volume. Each change is made before one of them, in turn.
const READING: [Call; 4] = [
    Call::PublishAgain,
    Call::Stats,
    Call::Snapshot,
    Call::Expand,
];

/// Changes before these calls are made to a new volume, which the life deletes. All other changes
/// are made to the volume that has data.
const LAST: [Call; 2] = [Call::Unstage, Call::Delete];

/// A volume that is staged at "a" and published at "p", and read-only at "r".
struct World {
    rig: Rig,
    access: Access,
    id: Cell<VolumeId>,
    capability: csi::VolumeCapability,
}

/// The answer of a call, and what the kernel shows afterwards.
type Lived = Vec<(Call, String, Vec<String>)>;

/// A change by another program. It fails where there is nothing to change.
type Change = (&'static str, fn(&World));

const CHANGES: [Change; 15] = [
    ("unmount the staging path", |w| {
        attempt("umount", &["-l", arg(&w.staging())])
    }),
    ("unmount the target", |w| {
        attempt("umount", &["-l", arg(&w.target())])
    }),
    ("mount over the staging path", |w| {
        attempt("mount", &["-t", "tmpfs", "foreign", arg(&w.staging())]);
    }),
    ("mount over the target", |w| {
        if !w.target().exists() {
            std::fs::create_dir(w.target()).unwrap();
        }
        attempt("mount", &["-t", "tmpfs", "foreign", arg(&w.target())]);
        attempt("mount", &["--bind", arg(&w.foreign()), arg(&w.target())]);
    }),
    ("remount read-only", |w| {
        attempt("mount", &["-o", "remount,ro", arg(&w.staging())]);
    }),
    ("remount the target's bind read-only", |w| {
        attempt("mount", &["-o", "remount,bind,ro", arg(&w.target())]);
    }),
    ("bind elsewhere", |w| {
        attempt("mount", &["--bind", arg(&w.staging()), arg(&w.elsewhere())]);
        attempt("mount", &["--bind", arg(&w.target()), arg(&w.foreign())]);
    }),
    ("move the mount at the staging path", |w| {
        attempt("mount", &["--move", arg(&w.staging()), arg(&w.elsewhere())]);
    }),
    ("move the mount at the target", |w| {
        // A directory for a filesystem, a file for a device.
        let to = if w.target().is_dir() {
            w.elsewhere()
        } else {
            w.foreign()
        };
        attempt("mount", &["--move", arg(&w.target()), arg(&to)]);
    }),
    ("another device over the image", |w| {
        attempt("losetup", &["-f", arg(&w.image())])
    }),
    ("a device of another program", |w| {
        attempt("losetup", &["-f", arg(&w.foreign())])
    }),
    ("detach the device", |w| w.detach()),
    ("another file at the device's number", |w| {
        for path in [w.target(), w.rig.target("r"), w.staging()] {
            attempt("umount", &["-l", arg(&path)]);
        }
        for device in w.devices() {
            detach(&device, &w.image());
            insist("losetup", &[&device, arg(&w.foreign())]);
        }
    }),
    ("the device's settings", |w| w.losetup("--direct-io=off")),
    ("grow the image and the device", |w| {
        let image = std::fs::File::options()
            .write(true)
            .open(w.image())
            .unwrap();
        image.set_len(image.metadata().unwrap().len() + MI).unwrap();
        w.losetup("-c");
    }),
];

fn attempt(program: &str, args: &[&str]) {
    command(program).args(args).output().unwrap();
}

/// Runs the program until it succeeds: a neighbour may have taken a device's number for a moment.
fn insist(program: &str, args: &[&str]) {
    let succeeds = |_: &u32| {
        command(program)
            .args(args)
            .output()
            .unwrap()
            .status
            .success()
    };
    let pause = |_| std::thread::sleep(std::time::Duration::from_millis(20));
    (0..50).take_while(|turn| !succeeds(turn)).for_each(pause);
}

impl World {
    fn new(kernel: Linux, access: Access) -> World {
        let mut site = Rig::site(&["default=DIR/pool"]);
        site.kernel = Arc::new(kernel);
        let rig = Rig::over(site, Configs::default());
        let capability = capability(&access);
        let id = Cell::new(rig.volume(access.clone(), 16 * MI));
        let world = World {
            rig,
            access,
            id,
            capability,
        };
        std::fs::create_dir(world.elsewhere()).unwrap();
        sparse(&world.foreign(), MI);
        world
    }

    fn staging(&self) -> PathBuf {
        self.rig.staging("a")
    }

    fn target(&self) -> PathBuf {
        self.rig.target("p")
    }

    fn elsewhere(&self) -> PathBuf {
        self.rig.root().join("elsewhere")
    }

    /// A file of another program.
    fn foreign(&self) -> PathBuf {
        self.rig.root().join("foreign")
    }

    fn image(&self) -> PathBuf {
        self.rig
            .root()
            .join(format!("pool/volumes/{}/image", self.id.get()))
    }

    /// Runs `losetup` with this option for each device over the image.
    fn losetup(&self, option: &str) {
        for device in self.devices() {
            attempt("losetup", &[option, &device]);
        }
    }

    /// Detaches each device over the image.
    fn detach(&self) {
        for device in self.devices() {
            detach(&device, &self.image());
        }
    }

    /// The devices over the image, by `losetup` and not by the driver's kernel.
    fn devices(&self) -> Vec<String> {
        let mut list = command("losetup");
        list.args(["-n", "-O", "NAME", "-j"]).arg(self.image());
        let listed = list.output().unwrap().stdout;
        String::from_utf8(listed)
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    fn call(&self, call: Call) -> String {
        let World {
            rig,
            id,
            capability,
            ..
        } = self;
        let id = id.get().to_string();
        let answer = match call {
            Call::Stage => rig.stage(&id, "a", capability),
            Call::Publish | Call::PublishAgain => rig.publish(&id, "a", "p", capability, false),
            Call::PublishReadOnly => rig.publish(&id, "a", "r", capability, true),
            Call::Stats => rig.stats(&id, &self.target()).map(drop),
            Call::Snapshot => rig.snapshot("snapshot", &id).map(drop),
            Call::Expand => rig.expand(&id, &self.target(), self.larger()).map(drop),
            Call::Unpublish => rig.unpublish(&id, "p"),
            Call::UnpublishReadOnly => rig.unpublish(&id, "r"),
            Call::Unstage => rig.unstage(&id, "a"),
            Call::Delete => rig.delete(&id),
        };
        format!("{:?}", code(answer))
    }

    /// The size for NodeExpandVolume: larger, unless this process can't grow the filesystem.
    fn larger(&self) -> u64 {
        let grows = self.access == Access::Block || self.rig.kernel.grows_mounted(FsType::Ext4);
        if grows { 17 * MI } else { 16 * MI }
    }

    /// What the kernel shows beneath the rig, without the parts that differ between rigs.
    fn seen(&self) -> Vec<String> {
        let id = self.id.get().to_string();
        let root = self.rig.root();
        let name = |path: &Path| {
            let path = path.strip_prefix(root).unwrap_or(path);
            path.display().to_string().replace(&id, "ID")
        };
        let backing = |device: &LoopInfo| match device.backing_rdev {
            0 => name(Path::new(&device.backing_path)),
            _ => "a loop device".to_owned(),
        };
        let loops = self.rig.devices();
        let device = |minor: u32| loops.iter().find(|l| l.minor == minor).map(backing);
        let table = self.rig.kernel.mounts().unwrap();
        let ours = table
            .entries
            .iter()
            .filter(|entry| entry.mount_point.starts_with(root));
        let mounts = ours.map(|entry| {
            let of = entry.loop_minor().or(entry.loop_node).map(device);
            let (at, options) = (name(&entry.mount_point), &entry.options);
            let read_only = entry.fs_read_only();
            format!(
                "{} at {at} {options:?} ro={read_only} of {of:?}",
                entry.fs_type
            )
        });
        let devices = loops.iter().map(|l| {
            let LoopInfo {
                read_only,
                direct_io,
                size_bytes,
                ..
            } = l;
            let over = backing(l);
            format!("loop over {over}: ro={read_only} dio={direct_io} {size_bytes} bytes")
        });
        let mut seen: Vec<String> = mounts.chain(devices).collect();
        let record = self
            .rig
            .node
            .pools
            .volume(&VolumeHandle::Id(self.id.get()))
            .ok();
        let recorded = record.map(|record| {
            let minor = record.stage.as_ref().map(|stage| stage.minor.is_some());
            (record.capacity_bytes, minor)
        });
        seen.push(format!("recorded: {recorded:?}"));
        seen.sort();
        seen
    }

    /// Lives until this call, has another program make the change, and lives on. `None` if the
    /// change did nothing. An error is something that a neighbour on this machine may have caused,
    /// too: it held one of the devices open for a moment.
    fn lives(&self, before: usize, change: fn(&World)) -> Result<Option<Lived>, String> {
        let kept = self.id.get();
        let life = if LAST.contains(&LIFE[before]) {
            self.id.set(self.rig.volume(self.access.clone(), 16 * MI));
            &LIFE[..]
        } else {
            &LIFE[..LIFE.len() - 1]
        };
        let lived = self.live(life, before, change);
        self.reset();
        let lived_by = self.id.replace(kept);
        if lived_by != kept {
            // It is still there if another program's use of it made DeleteVolume fail.
            self.rig.delete(&lived_by.to_string()).unwrap();
        }
        lived
    }

    /// Makes these calls, with the change before one of them.
    fn live(
        &self,
        life: &[Call],
        before: usize,
        change: fn(&World),
    ) -> Result<Option<Lived>, String> {
        for call in &life[..before] {
            let answer = self.call(*call);
            // Only a pool with reflinks copies a device in use.
            let live = *call == Call::Snapshot && self.access == Access::Block;
            let refused = live && answer == "Err(FailedPrecondition)";
            if answer != "Ok(())" && !refused {
                return Err(format!("{call:?}: {answer}"));
            }
        }
        let unchanged = self.seen();
        change(self);
        let changed = self.seen();
        if changed == unchanged {
            return Ok(None);
        }
        let mut lived = Vec::new();
        for call in &life[before..] {
            let answer = self.call(*call);
            let seen = self.seen();
            if foreign(&seen) != foreign(&changed) {
                return Err(format!(
                    "{call:?} changed what is another program's: {changed:?}, {seen:?}"
                ));
            }
            lived.push((*call, answer, seen));
        }
        Ok(Some(lived))
    }

    /// Ends all use of the volume.
    fn reset(&self) {
        let rig = &self.rig;
        rig.kernel.clean(rig.root());
        for target in std::fs::read_dir(rig.root().join("pods")).unwrap() {
            let target = target.unwrap().path();
            let removed = if target.is_dir() {
                std::fs::remove_dir(&target)
            } else {
                std::fs::remove_file(&target)
            };
            removed.unwrap();
        }
        for snapshot in rig.node.pools.snapshots() {
            rig.delete_snapshot(&snapshot.id.to_string()).unwrap();
        }
        let id = self.id.get();
        if rig.node.pools.volume(&VolumeHandle::Id(id)).is_ok() {
            rig.update(id, |record| record.stage = None);
        }
    }
}

/// What is another program's.
fn foreign(seen: &[String]) -> Vec<&String> {
    seen.iter()
        .filter(|what| what.contains("foreign") || what.starts_with("tmpfs"))
        .collect()
}

fn changes_between_any_two_calls(access: &Access, queries: MountQueries) {
    let following = World::new(Linux::following(queries), access.clone());
    let reading = World::new(Linux::new(), access.clone());
    let both = |use_data: fn(&Path, u8, usize)| {
        for world in [&following, &reading] {
            assert_eq!(world.call(Call::Stage), "Ok(())");
            if *access != Access::Block {
                use_data(&world.staging().join("data"), 1, 100_000);
            }
            world.reset();
        }
    };
    both(write);
    let (mut tried, mut effective) = (0, 0);
    for (turn, (what, change)) in CHANGES.into_iter().enumerate() {
        for (before, call) in LIFE.iter().enumerate() {
            if READING.contains(call) && READING[turn % READING.len()] != *call {
                continue;
            }
            // Other tests and programs open loop devices for a moment, and a device detaches only
            // after that. On a busy machine the moment is longer.
            let end = Instant::now() + PATIENCE;
            let read = loop {
                let lives = [&following, &reading].map(|world| world.lives(before, change));
                match lives {
                    [Ok(known), Ok(read)] if known == read => break read,
                    lives if Instant::now() > end => panic!("{what}, before {call:?}: {lives:#?}"),
                    _ => std::thread::sleep(Duration::from_millis(100)),
                }
            };
            tried += 1;
            effective += usize::from(read.is_some());
        }
    }
    println!("{effective} of {tried} changes between calls had an effect");
    assert!(effective > tried / 2);
    both(assert_written);
}

#[rstest]
fn mounted_volumes_are_changed_behind_the_drivers_back(
    #[values(MountQueries::Table, MountQueries::ById, MountQueries::Counted)] queries: MountQueries,
) {
    changes_between_any_two_calls(&ext4(), queries);
}

#[rstest]
fn block_volumes_are_changed_behind_the_drivers_back(
    #[values(MountQueries::Table, MountQueries::ById, MountQueries::Counted)] queries: MountQueries,
) {
    changes_between_any_two_calls(&Access::Block, queries);
}

/// What is known of mounts does not have this one: its ID is too old to be listed with the latest
/// ones, and another mount that goes keeps their count the same.
#[test]
fn a_volume_that_is_mounted_long_after_a_look_is_not_deleted() {
    let test = || {
        own_namespace(&Linux::new(), Path::new("/nothing"));
        let world = World::new(Linux::following(MountQueries::default()), ext4());
        let rig = &world.rig;
        let (at, over) = (rig.root().join("late"), rig.root().join("over"));
        let older = rig.root().join("older");
        for dir in [&at, &over, &older] {
            std::fs::create_dir(dir).unwrap();
        }
        run("mount", &["-t", "tmpfs", "none", arg(&older)]);
        let image = world.image();
        let device = run("losetup", &["-f", "--show", arg(&image)]);
        run("mkfs.ext4", &["-q", &device]);
        run("mount", &[&device, arg(&at)]);
        attach_late(&at, &over, || drop(rig.kernel.known_mounts().unwrap()));
        run("umount", &[arg(&older)]);
        let refused = rig.delete(&world.id.get().to_string()).unwrap_err();
        assert!(refused.to_string().contains("in use"), "{refused}");
        assert!(image.exists());
        rig.kernel.clean(rig.root());
    };
    std::thread::scope(|scope| scope.spawn(test).join().unwrap());
}
