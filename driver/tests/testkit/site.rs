//! A temporary directory, a kernel, and pools that are configured and opened there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostloop_driver::kernel::extents::ByteRange;
use hostloop_driver::kernel::linux::{Linux, MountQueries};
use hostloop_driver::kernel::{
    self, FileId, Filesystems, FsType, Kernel, KnownLoops, LoopDevice, LoopDevices, LoopInfo,
    LoopSpec, MkfsSpec, MountSpec, Mounts, file_id, loops_of,
};
use hostloop_driver::storage::file_names::LOCK;
use hostloop_driver::storage::{
    Error, NewVolume, Pool, PoolOptions, PoolSpec, Pools, Provisioning, Reserve, Result,
    SnapshotRecord, VolumeHandle, VolumeId, VolumeRecord,
};
use hostloop_fake_kernel::Model;
use nix::mount::{MntFlags, umount2};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::{PATIENCE, new, rdev};

/// A kernel that tests can run on.
pub(crate) trait TestKernel: Kernel + Sized + 'static {
    /// Other processes and threads use this kernel too, so a closed file can stay open for a
    /// moment.
    const SHARED: bool = false;

    /// Returns the kernel after a check of the tests' requirements.
    fn get() -> Self;

    /// Unmounts and detaches everything beneath the directory, as a reboot does.
    fn clean(&self, root: &Path);

    /// The number of changes so far. Linux does not count them.
    fn changes(&self) -> usize {
        0
    }
}

impl TestKernel for Model {
    fn get() -> Model {
        Model::new()
    }

    fn clean(&self, _root: &Path) {
        self.reboot();
    }

    fn changes(&self) -> usize {
        self.effects().len()
    }
}

impl TestKernel for Linux {
    const SHARED: bool = true;

    fn get() -> Linux {
        let kernel = Linux::following(MountQueries::default());
        let missing = kernel.missing();
        assert!(missing.is_empty(), "these tests need: {missing:?}");
        for (fs, offered) in kernel.filesystems() {
            assert_eq!(offered, Ok(()), "these tests need the tools of {fs}");
        }
        kernel
    }

    fn clean(&self, root: &Path) {
        let beneath = |path: &Path| path.starts_with(root);
        // A device can hold a mount, and a mount a device. A child of another test can hold either.
        let end = Instant::now() + PATIENCE;
        loop {
            let table = self.mounts();
            let entries = table.iter().flat_map(|table| table.entries.iter().rev());
            let mounts: Vec<_> = entries.filter(|e| beneath(&e.mount_point)).collect();
            for entry in &mounts {
                if let Ok(dir) = File::open(&entry.mount_point) {
                    let _ = self.thaw(&dir);
                }
                // Not by the kernel interface, which waits for a busy mount.
                let _ = umount2(&*entry.mount_point, MntFlags::UMOUNT_NOFOLLOW);
            }
            // Only now: an autoclear device goes with its last mount.
            let loops = self.loops();
            let is_known = table.is_ok() && loops.is_ok();
            let mut all = loops_beneath(loops.unwrap_or_default(), root);
            if is_known && all.is_empty() && mounts.is_empty() {
                break;
            }
            if Instant::now() > end {
                // A second panic would end the other tests, too.
                assert!(std::thread::panicking(), "left behind: {all:?}, {mounts:?}");
                break;
            }
            // A loop device over another one holds that one, so it is detached first.
            all.sort_by_key(|l| (l.backing_rdev == 0, std::cmp::Reverse(l.minor)));
            for info in all {
                let _ = self.loop_release(&info);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Loop devices over files beneath a directory, and devices over these.
pub(crate) fn loops_beneath(mut loops: Vec<LoopInfo>, root: &Path) -> Vec<LoopInfo> {
    let is_ours = |l: &LoopInfo| Path::new(&l.backing_path).starts_with(root);
    let ours = loops.iter().filter(|l| is_ours(l));
    let ours: Vec<u64> = ours.map(|l| rdev(l.minor)).collect();
    loops.retain(|l| is_ours(l) || ours.contains(&l.backing_rdev));
    loops
}

/// Changes a copy of the known devices.
pub(crate) fn edit_loops(known: &mut KnownLoops, change: impl FnOnce(&mut Vec<LoopInfo>)) {
    let mut devices: Vec<LoopInfo> = known.iter().cloned().collect();
    change(&mut devices);
    known.table = devices.into();
}

/// Configured pools, and the simulated process that has them open.
pub(crate) struct Site<K: TestKernel = Model> {
    opened: Option<Arc<Pools>>,
    pub(crate) kernel: Arc<K>,
    pub(crate) specs: Vec<PoolSpec>,
    pub(crate) options: PoolOptions,
    pub(crate) dir: TempDir,
}

impl Site {
    /// Open pools of these names beside each other, over the fake kernel.
    pub(crate) fn fake(names: &[&str]) -> Site {
        let specs: Vec<String> = names.iter().map(|n| format!("{n}=DIR/{n}")).collect();
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        let mut site = Site::new(&specs);
        site.open();
        site
    }
}

impl<K: TestKernel> Site<K> {
    /// Configures pools as on the command line, with `DIR` for the temporary directory. They are
    /// not open yet.
    pub(crate) fn new(specs: &[&str]) -> Site<K> {
        let mut builder = tempfile::Builder::new();
        let prefix = format!("hostloop-test-{}-", std::process::id());
        builder.prefix(&prefix);
        // Direct I/O works in /var/tmp; /tmp may be a tmpfs.
        let dir = if K::SHARED {
            builder.tempdir_in("/var/tmp")
        } else {
            builder.tempdir()
        };
        let dir = dir.unwrap();
        let root = dir.path().to_str().unwrap();
        let spec = |spec: &&str| spec.replace("DIR", root).parse().unwrap();
        Site {
            specs: specs.iter().map(spec).collect(),
            options: PoolOptions {
                node_id: None,
                state_dir: dir.path().join("state"),
                overcommit: 1.0,
                reserve: Reserve::Bytes(0),
                max_volume_bytes: None,
                max_freeze: PATIENCE,
                max_snapshot_bytes_per_namespace: None,
            },
            kernel: Arc::new(K::get()),
            opened: None,
            dir,
        }
    }

    /// One pool at a path.
    pub(crate) fn at(name: &str, path: &Path) -> Site<K> {
        Site::new(&[&format!("{name}={}", path.display())])
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn try_open(&self) -> Result<Arc<Pools>> {
        Pools::open(&self.specs, self.options.clone(), self.kernel.clone())
    }

    /// Opens the pools; some of them may be missing.
    pub(crate) fn start(&self) -> Arc<Pools> {
        // A child of another test can inherit a lock until it runs its program.
        let is_locked = |opened: &Result<Arc<Pools>>| match opened {
            Ok(pools) => {
                let missing = pools.complete().err().map(|e| e.to_string());
                missing.is_some_and(|why| why.contains("another process"))
            }
            Err(e) => matches!(e, Error::Locked { .. }),
        };
        let end = Instant::now() + PATIENCE;
        let mut opened = self.try_open();
        while K::SHARED && is_locked(&opened) && Instant::now() < end {
            drop(opened);
            std::thread::sleep(Duration::from_millis(20));
            opened = self.try_open();
        }
        opened.unwrap()
    }

    /// Opens the pools, as after a restart of the process.
    pub(crate) fn open(&mut self) -> &Pools {
        self.opened = None;
        self.opened = Some(self.start());
        self.pools()
    }

    /// Closes the pools, as at the end of the process.
    pub(crate) fn close(&mut self) {
        self.opened = None;
        for spec in &self.specs {
            wait_for_lock(
                &self
                    .options
                    .state_dir
                    .join("pools")
                    .join(&spec.name)
                    .join(LOCK),
            );
        }
    }

    /// Closes the pools and unmounts those that the driver mounted, as before a reboot.
    pub(crate) fn unmount(&mut self) {
        self.close();
        for spec in &self.specs {
            let at = self.options.state_dir.join("pools").join(&spec.name);
            let at = at.canonicalize().unwrap_or(at);
            if self.kernel.mounts().unwrap().at(&at).is_some() {
                while_busy(|| self.kernel.unmount(&at)).unwrap();
            }
        }
    }

    /// Maintains all pools, as the driver does every few seconds.
    pub(crate) fn tend(&self) {
        tend(self.pools());
    }

    pub(crate) fn pools(&self) -> &Arc<Pools> {
        self.opened.as_ref().unwrap()
    }

    pub(crate) fn named(&self, name: &str) -> Arc<Pool> {
        self.pools().named(Some(name)).unwrap()
    }

    /// The first pool.
    pub(crate) fn pool(&self) -> Arc<Pool> {
        self.pools().named(None).unwrap()
    }

    /// Why the first pool is missing.
    pub(crate) fn why_missing(&self) -> String {
        self.pools().slots().remove(0).state.unwrap_err()
    }

    /// A file in the first pool's configured directory.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.specs[0].path.join(path)
    }

    /// Creates a volume of 4 MiB in the first pool.
    pub(crate) fn make(&self, name: &str) -> Arc<VolumeRecord> {
        self.create(new(name))
    }

    /// Creates a volume in the first pool.
    pub(crate) fn create(&self, new: NewVolume) -> Arc<VolumeRecord> {
        self.pools().create_volume(&self.pool(), new).unwrap()
    }

    /// Creates a volume in the pool of this name.
    pub(crate) fn create_in(&self, pool: &str, new: NewVolume) -> Arc<VolumeRecord> {
        self.pools().create_volume(&self.named(pool), new).unwrap()
    }

    /// The current record of a volume.
    pub(crate) fn volume(&self, id: VolumeId) -> Arc<VolumeRecord> {
        self.pools().volume(&VolumeHandle::Id(id)).unwrap()
    }

    /// Changes the record of a volume.
    pub(crate) fn update(
        &self,
        id: VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
    ) -> Arc<VolumeRecord> {
        self.pools().update_volume(&id, change).unwrap()
    }

    /// Takes a snapshot of a volume.
    pub(crate) fn snapshot(&self, volume: &VolumeRecord, name: &str) -> Arc<SnapshotRecord> {
        let taken = self
            .pools()
            .create_snapshot(&volume.id, name, &Default::default());
        taken.unwrap()
    }

    /// Bytes that the first pool can promise.
    pub(crate) fn available(&self, provisioning: Provisioning) -> u64 {
        self.pool().capacity(provisioning).unwrap().available
    }

    pub(crate) fn image_of(&self, volume: &VolumeRecord) -> FileId {
        file_id(self.pools().open_image(volume, false).unwrap()).unwrap()
    }

    /// Attaches a volume, makes an ext4 filesystem on it and mounts that at a directory of this
    /// name.
    pub(crate) fn mounted(&self, volume: &VolumeRecord, name: &str) -> (LoopDevice, PathBuf) {
        let (device, at) = (self.attach(volume), self.root().join(name));
        std::fs::create_dir(&at).unwrap();
        make_fs(&*self.kernel, &device, FsType::Ext4);
        mount_fs(&*self.kernel, &device, &at, FsType::Ext4);
        (device, at)
    }

    /// Attaches a loop device to a volume's image.
    pub(crate) fn attach(&self, volume: &VolumeRecord) -> LoopDevice {
        self.attach_file(&self.pools().open_image(volume, true).unwrap())
    }

    /// Attaches a loop device to a file, until it is detached or the site is dropped.
    pub(crate) fn attach_file(&self, backing: &File) -> LoopDevice {
        attach(&*self.kernel, backing, false)
    }

    /// The number of loop devices over a file.
    pub(crate) fn loops_over(&self, file: &File) -> usize {
        loops_of(&*self.kernel, file_id(file).unwrap())
            .unwrap()
            .len()
    }

    /// The entries of the first pool's directories, unfinished ones included.
    pub(crate) fn entries(&self) -> Vec<String> {
        let root = match &self.opened {
            Some(pools) if pools.named(None).is_ok() => self.pool().root().to_path_buf(),
            _ => self.specs[0].path.clone(),
        };
        let list = |dir: &&str| {
            let entries = std::fs::read_dir(root.join(dir)).unwrap();
            let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
            let names = entries.map(|e| format!("{dir}/{}", name(e).to_string_lossy()));
            names.collect::<Vec<_>>()
        };
        let dirs = ["volumes", "snapshots", "groups", "incoming", "trash"];
        let mut all: Vec<String> = dirs.iter().flat_map(list).collect();
        all.sort();
        all
    }
}

impl<K: TestKernel> Drop for Site<K> {
    fn drop(&mut self) {
        self.opened = None;
        self.kernel.clean(self.dir.path());
    }
}

/// Maintains all pools, as the driver does every few seconds.
pub(crate) fn tend(pools: &Pools) {
    (0..pools.count()).for_each(|slot| pools.tend(slot));
    pools.settle_groups();
}

/// A loop device with direct I/O and autoclear, at a free minor.
pub(crate) fn loop_spec(backing: &File) -> LoopSpec<'_> {
    LoopSpec {
        backing,
        label: "hostloop-test",
        offset: 0,
        read_only: false,
        direct_io: true,
        autoclear: true,
        minor: None,
    }
}

/// Attaches a loop device to a file, with direct I/O.
pub(crate) fn attach(kernel: &dyn Kernel, backing: &File, autoclear: bool) -> LoopDevice {
    kernel
        .loop_attach(&LoopSpec {
            autoclear,
            ..loop_spec(backing)
        })
        .unwrap()
}

/// Collects the ranges that a function emits.
pub(crate) fn collect(
    find: impl FnOnce(&mut dyn FnMut(ByteRange) -> bool) -> kernel::Result<()>,
) -> Vec<ByteRange> {
    let mut ranges = Vec::new();
    let mut emit = |range| {
        ranges.push(range);
        true
    };
    find(&mut emit).unwrap();
    ranges
}

/// Mounts a new filesystem of this size, with its image next to the directory.
pub(crate) fn new_filesystem(kernel: &dyn Kernel, target: &Path, fs: FsType, bytes: u64) {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    let image = options.open(target.with_extension("img")).unwrap();
    image.set_len(bytes).unwrap();
    let device = attach(kernel, &image, true);
    make_fs(kernel, &device, fs);
    mount_fs(kernel, &device, target, fs);
}

/// Repeats a mount or unmount while it is busy. A child of another test, or a namespace with copies
/// of all mounts, can hold a filesystem for longer than the driver waits.
pub(crate) fn while_busy<T>(mut call: impl FnMut() -> kernel::Result<T>) -> kernel::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match call() {
            Err(kernel::Error::Busy { .. }) if Instant::now() < end => {}
            answer => return answer,
        }
    }
}

/// Waits until the lock of a closed pool is free. A process that another test starts has a copy of
/// each open file until its exec, and the lock lasts until then.
fn wait_for_lock(path: &Path) {
    let Ok(lock) = File::open(path) else { return };
    let end = Instant::now() + PATIENCE;
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        assert!(Instant::now() < end, "{} is still locked", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    // Copies of this file give the lock up, too.
    flock(&lock, FlockOperation::Unlock).unwrap();
}

/// Makes a filesystem on a loop device.
pub(crate) fn make_fs(kernel: &dyn Kernel, device: &LoopDevice, fs: FsType) {
    kernel.mkfs(&MkfsSpec::new(&device.path(), fs)).unwrap();
}

/// Mounts the filesystem of a loop device.
pub(crate) fn mount_fs(kernel: &dyn Kernel, device: &LoopDevice, target: &Path, fs: FsType) {
    let device = device.path();
    kernel.mount(&mount_spec(&device, target, fs)).unwrap();
}

/// A mount for writing without further options.
pub(crate) fn mount_spec<'a>(device: &'a Path, target: &'a Path, fs: FsType) -> MountSpec<'a> {
    MountSpec {
        device,
        target,
        fs,
        read_only: false,
        options: &[],
    }
}
