//! Freezes real filesystems for a copy, and thaws them in every case.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use hostloop_driver::kernel::FsType::{Btrfs, Ext4, Xfs};
use hostloop_driver::kernel::file::Copied;
use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{self, FileId, Freeze, FsType, Kernel, LoopDevice};
use hostloop_driver::kernel::{BindFlags, MountSpec};
use hostloop_driver::storage::freeze::{
    self, FreezeLimits, FreezeTarget, Intents, LeftoverFreeze, Still,
};
use hostloop_driver::storage::{Error, PoolId, Result, VolumeId};
use parking_lot::Mutex;
use rstest::rstest;

use super::support::{Mount, Pool, arg, run, sparse};
use crate::testkit::{PATIENCE, attach, make_fs, mount_spec, while_busy};
use crate::tools::until;

fn kernel() -> Arc<dyn Kernel> {
    Arc::new(Linux::new())
}

/// A volume attached and mounted as the node does it. Drop thaws, unmounts and detaches it.
struct Volume {
    kernel: Arc<dyn Kernel>,
    id: VolumeId,
    fs: FsType,
    len: u64,
    file: File,
    image: FileId,
    device: LoopDevice,
    at: PathBuf,
}

impl Volume {
    fn attach(pool: &Pool, name: &str, fs: FsType) -> Volume {
        let kernel = kernel();
        let len = fs.minimum_bytes().max(64 << 20);
        let file = sparse(&pool.path(name), len);
        let device = attach(&*kernel, &file, false);
        Volume {
            id: VolumeId::generate(PoolId::generate()),
            fs,
            len,
            image: kernel::file_id(&file).unwrap(),
            file,
            device,
            at: pool.path(&format!("{name}-mount")),
            kernel,
        }
    }

    fn mounted(pool: &Pool, name: &str, fs: FsType) -> Volume {
        let volume = Volume::attach(pool, name, fs);
        make_fs(&*volume.kernel, &volume.device, fs);
        std::fs::create_dir(&volume.at).unwrap();
        volume.mount();
        volume
    }

    fn mount(&self) {
        mount(&*self.kernel, &self.device, &self.at, self.fs);
    }

    fn target(&self) -> FreezeTarget {
        FreezeTarget {
            volume: self.id,
            image: self.image,
            raw_staged: false,
            freeze_intent: false,
        }
    }

    fn copy(&self, still: &Still, to: &File, pool: &Pool) -> Result<Copied> {
        still.copy(self.image, &self.file, to, &pool.thin(self.len, false))
    }

    fn root(&self) -> File {
        File::open(&self.at).unwrap()
    }

    fn freeze(&self) {
        assert_eq!(self.kernel.freeze(&self.root()).unwrap(), Freeze::Frozen);
    }

    fn is_frozen(&self) -> bool {
        match self.kernel.freeze(&self.root()).unwrap() {
            Freeze::AlreadyFrozen => true,
            Freeze::Frozen => {
                self.kernel.thaw(&self.root()).unwrap();
                false
            }
        }
    }

    fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.at.join(name), content).unwrap();
    }

    fn takes_writes(&self) -> bool {
        self.writes_within(PATIENCE)
    }

    /// True if a write completes in this time. A blocked write continues in its thread.
    fn writes_within(&self, time: Duration) -> bool {
        let path = self.at.join("probe");
        let (done, finished) = mpsc::channel();
        std::thread::spawn(move || {
            let file = File::create(path).and_then(|mut f| f.write_all(b"x"));
            let _ = done.send(file.is_ok());
        });
        finished.recv_timeout(time).unwrap_or(false)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let table = self.kernel.mounts().unwrap_or_default();
        // The latest mount comes first, and also one that a failed test left elsewhere.
        for mount in table.entries.iter().rev() {
            if mount.loop_minor() != Some(self.device.minor) {
                continue;
            }
            if let Ok(root) = self.kernel.open_mount(mount) {
                let _ = self.kernel.thaw(&root);
            }
            unmount(&*self.kernel, &mount.mount_point);
        }
        let detached = self.kernel.loop_detach(self.device.minor, self.image);
        if !std::thread::panicking() {
            // This function's own handle is still open until it returns.
            detached.unwrap();
        }
    }
}

fn mount(kernel: &dyn Kernel, device: &LoopDevice, at: &Path, fs: FsType) {
    let nouuid = ["nouuid".to_owned()];
    let path = device.path();
    let spec = MountSpec {
        options: if fs == Xfs { &nouuid } else { &[] },
        ..mount_spec(&path, at, fs)
    };
    while_busy(|| kernel.mount(&spec)).unwrap();
}

/// A probe that was blocked may need a moment to close its file.
fn unmount(kernel: &dyn Kernel, at: &Path) {
    let unmounted = while_busy(|| kernel.unmount(at));
    if !std::thread::panicking() {
        unmounted.unwrap();
    }
}

#[derive(Default)]
struct Notes(Mutex<Vec<VolumeId>>);

impl Intents for Notes {
    fn write(&self, volumes: &[VolumeId]) -> Result<()> {
        self.0.lock().extend(volumes);
        Ok(())
    }

    fn clear(&self, volumes: &[VolumeId]) -> Result<()> {
        self.0.lock().retain(|v| !volumes.contains(v));
        Ok(())
    }
}

fn quiesced<T>(targets: &[FreezeTarget], copy: impl FnOnce(&Still) -> Result<T>) -> Result<T> {
    limited(targets, PATIENCE, copy)
}

fn limited<T>(
    targets: &[FreezeTarget],
    max_freeze: Duration,
    copy: impl FnOnce(&Still) -> Result<T>,
) -> Result<T> {
    let notes = Notes::default();
    let limits = FreezeLimits {
        max_freeze,
        check: &|| Ok(()),
    };
    let done = freeze::quiesced(&kernel(), targets, &limits, &notes, copy);
    assert!(notes.0.lock().is_empty(), "no intent is left");
    done
}

/// The copy has data that its writer never synced, and it can be mounted.
#[rstest]
fn a_copy_has_what_was_written_before(
    #[values("ext4", "xfs", "btrfs+C")] outer: &str,
    #[values(Ext4, Xfs, Btrfs)] inner: FsType,
) {
    let pool = Pool::new(outer, 2 << 30);
    let volume = Volume::mounted(&pool, "image", inner);
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    volume.write("before", &content);
    let copy = sparse(&pool.path("copy"), 0);
    let copied = quiesced(&[volume.target()], |still| {
        assert!(volume.is_frozen() && !volume.writes_within(Duration::from_millis(300)));
        volume.copy(still, &copy, &pool)
    })
    .unwrap();
    assert_eq!(copied == Copied::Shared, pool.reflinks);
    assert!(!volume.is_frozen() && volume.takes_writes());
    volume.write("after", b"after");

    let device = attach(&*volume.kernel, &copy, false);
    let at = pool.path("copy-mount");
    std::fs::create_dir(&at).unwrap();
    mount(&*volume.kernel, &device, &at, inner);
    let found = std::fs::read(at.join("before")).unwrap();
    let after = at.join("after").exists();
    unmount(&*volume.kernel, &at);
    let id = kernel::file_id(&copy).unwrap();
    volume.kernel.loop_detach(device.minor, id).unwrap();
    assert!(found == content && !after);
}

#[rstest]
fn a_freeze_of_another_process_stays(#[values(Ext4, Xfs, Btrfs)] inner: FsType) {
    let pool = Pool::new("xfs", 2 << 30);
    let volume = Volume::mounted(&pool, "image", inner);
    run("fsfreeze", &["-f", arg(&volume.at)]);
    let copy = sparse(&pool.path("copy"), 0);
    quiesced(&[volume.target()], |still| volume.copy(still, &copy, &pool)).unwrap();
    run("fsfreeze", &["-u", arg(&volume.at)]);
    assert!(!volume.is_frozen());

    run("fsfreeze", &["-f", arg(&volume.at)]);
    let spoilt = quiesced(&[volume.target()], |_| {
        run("fsfreeze", &["-u", arg(&volume.at)]);
        Ok(())
    });
    refused!(spoilt, Error::CannotFreeze(_));
    assert!(!volume.is_frozen());
}

#[test]
fn a_group_is_frozen_together() {
    let pool = Pool::new("xfs", 3 << 30);
    let volumes = [Ext4, Xfs, Btrfs].map(|fs| Volume::mounted(&pool, fs.as_str(), fs));
    let rest = sparse(&pool.path("rest"), 1 << 20);
    let mut targets: Vec<FreezeTarget> = volumes.iter().map(Volume::target).collect();
    targets.push(FreezeTarget {
        volume: VolumeId::generate(PoolId::generate()),
        image: kernel::file_id(&rest).unwrap(),
        raw_staged: true,
        freeze_intent: false,
    });
    quiesced(&targets, |_| {
        assert!(volumes.iter().all(|v| v.is_frozen()));
        Ok(())
    })
    .unwrap();
    assert!(volumes.iter().all(|v| !v.is_frozen() && v.takes_writes()));

    let raw = Volume::attach(&pool, "raw", Ext4);
    let mut target = raw.target();
    target.raw_staged = true;
    targets.push(target);
    let refused = quiesced(&targets, |_| -> Result<()> { unreachable!("refused") });
    refused!(refused, Error::CannotFreeze(_));
    assert!(volumes.iter().all(|v| !v.is_frozen()));
}

#[rstest]
#[case::cloned("xfs")]
#[case::refused("ext4")]
fn a_raw_device_in_use_is_cloned_or_refused(#[case] outer: &str) {
    let pool = Pool::new(outer, 1 << 30);
    let volume = Volume::attach(&pool, "image", Ext4);
    let mut target = volume.target();
    target.raw_staged = true;
    // This write is only in the device's page cache.
    let path = volume.device.path();
    let mut device = File::options().write(true).open(path).unwrap();
    device.write_all(&[3; 65536]).unwrap();
    let copy = sparse(&pool.path("copy"), 0);
    let copied = quiesced(&[target], |still| volume.copy(still, &copy, &pool));
    drop(device);
    if !pool.reflinks {
        refused!(copied, Error::CannotFreeze(_));
        return;
    }
    assert_eq!(copied.unwrap(), Copied::Shared);
    let mut found = [0; 65536];
    copy.read_exact_at(&mut found, 0).unwrap();
    assert!(found.iter().all(|b| *b == 3));
}

#[test]
fn a_copy_that_takes_too_long_gives_up_and_thaws() {
    let pool = Pool::new("ext4", 2 << 30);
    let volume = Volume::mounted(&pool, "image", Ext4);
    volume.write("much", &vec![1; 40 << 20]);
    let copy = sparse(&pool.path("copy"), 0);
    let given_up = limited(&[volume.target()], Duration::from_millis(200), |still| {
        // As slow as the copy of a much larger volume.
        std::thread::sleep(Duration::from_millis(150));
        loop {
            copy.set_len(0).unwrap();
            volume.copy(still, &copy, &pool)?;
        }
        #[allow(unreachable_code)]
        Ok(())
    });
    match given_up {
        Err(Error::CannotFreeze(why)) => assert!(why.contains("--max-freeze"), "{why}"),
        other => panic!("{other:?}"),
    }
    // On a busy disk, the freeze itself is given up, and its thread thaws when it ends.
    until("it is thawed", || !volume.is_frozen());
    assert!(volume.takes_writes());
}

/// A process died between freeze and thaw, and its frozen filesystem was unmounted or not.
#[rstest]
fn a_leftover_freeze_is_thawed(
    #[values(Ext4, Xfs, Btrfs)] inner: FsType,
    #[values("xfs", "ext4")] outer: &str,
) {
    let pool = Pool::new(outer, 2 << 30);
    let volume = Volume::mounted(&pool, "image", inner);
    volume.write("kept", b"kept");
    let (kernel, id) = (&*volume.kernel, volume.id);
    let thaw = || freeze::thaw_leftover(kernel, id, volume.image).unwrap();

    volume.freeze();
    assert_eq!(thaw(), LeftoverFreeze::Mounted);
    assert!(!volume.is_frozen() && volume.takes_writes());

    volume.freeze();
    unmount(&*volume.kernel, &volume.at);
    assert_eq!(thaw(), LeftoverFreeze::Unmounted);
    // The result is the same if nothing was frozen.
    assert_eq!(thaw(), LeftoverFreeze::Unmounted);

    volume.mount();
    assert_eq!(std::fs::read(volume.at.join("kept")).unwrap(), b"kept");
    assert!(volume.takes_writes() && !volume.is_frozen());
}

#[test]
fn a_read_only_leftover_is_thawed_too() {
    let pool = Pool::new("xfs", 2 << 30);
    let volume = Volume::mounted(&pool, "image", Ext4);
    unmount(&*volume.kernel, &volume.at);
    let path = volume.device.path();
    let spec = MountSpec {
        read_only: true,
        ..mount_spec(&path, &volume.at, volume.fs)
    };
    while_busy(|| volume.kernel.mount(&spec)).unwrap();
    volume.freeze();
    unmount(&*volume.kernel, &volume.at);
    let thawed = freeze::thaw_leftover(&*volume.kernel, volume.id, volume.image);
    assert_eq!(thawed.unwrap(), LeftoverFreeze::Unmounted);
    volume.mount();
    assert!(volume.takes_writes());
}

/// A different filesystem mounted on top of the volume must not be frozen instead of it.
#[test]
fn a_hidden_mount_is_not_reached_through() {
    let pool = Pool::new("xfs", 1 << 30);
    let volume = Volume::mounted(&pool, "image", Ext4);
    let bind = pool.path("bind");
    std::fs::create_dir(&bind).unwrap();
    {
        let _above = Mount::new("tmpfs", Path::new("none"), &volume.at, "size=1m");
        let hidden = quiesced(&[volume.target()], |_| -> Result<()> {
            unreachable!("hidden")
        });
        refused!(hidden, Error::CannotFreeze(_));
    }
    // A second mount of the volume is sufficient.
    let bound = volume.kernel.bind(&volume.at, &bind, BindFlags::default());
    bound.unwrap();
    {
        let _above = Mount::new("tmpfs", Path::new("none"), &volume.at, "size=1m");
        let frozen = quiesced(&[volume.target()], |_| {
            Ok(volume.kernel.freeze(&File::open(&bind).unwrap()).unwrap())
        });
        assert_eq!(frozen.unwrap(), Freeze::AlreadyFrozen);
    }
    while_busy(|| volume.kernel.unmount(&bind)).unwrap();
    assert!(!volume.is_frozen());
}

/// An inner XFS that can't write back, because its pool is full, hangs in FIFREEZE.
#[test]
fn a_full_pool_does_not_hang_the_caller() {
    let pool = Pool::new("xfs", 600 << 20);
    let volume = Volume::mounted(&pool, "image", Xfs);
    // With the driver's limits, it would give up after half a minute, and this test may take longer.
    for kind in ["ENOSPC", "EIO", "default"] {
        for limit in ["max_retries", "retry_timeout_seconds"] {
            let minor = volume.device.minor;
            let path = format!("/sys/fs/xfs/loop{minor}/error/metadata/{kind}/{limit}");
            std::fs::write(path, "-1").unwrap();
        }
    }
    let full = pool.fill();
    for i in 0..2000 {
        volume.write(&format!("file-{i}"), &[1; 20000]);
    }
    let notes = Notes::default();
    let limits = FreezeLimits {
        max_freeze: Duration::from_secs(2),
        check: &|| Ok(()),
    };
    let targets = [volume.target()];
    let attempt = || freeze::quiesced(&kernel(), &targets, &limits, &notes, |_| Ok(()));
    for _ in 0..3 {
        let began = Instant::now();
        match attempt() {
            Err(Error::CannotFreeze(_)) => {}
            Err(Error::Kernel(e)) if e.is_no_space() => {}
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < PATIENCE);
    }
    drop(full);
    until("it is thawed once there is room", || attempt().is_ok());
    assert!(!volume.is_frozen() && volume.takes_writes());
    assert!(notes.0.lock().is_empty());
}
