//! The real kernel.

use std::fs::File;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hostloop_events::phase;

use super::file::Pace;
use super::under_way::UnderWay;
use super::{
    BindFlags, Detached, Error, Ext4, FileId, Filesystems, Freeze, FsState, FsType, FsUsage,
    KnownLoops, LoopDevice, LoopDevices, LoopInfo, LoopScope, LoopSpec, MkfsSpec, MountEntry,
    MountSpec, MountTable, Mounts, Probe, Result, Superblock, extents, file, topmost_mount,
};

mod asking;
mod attributes;
pub(crate) mod blank;
mod btrfs;
mod detached;
mod fs;
mod fs_tools;
mod holders;
mod ioctl;
mod kernel_log;
mod known;
mod loopdev;
mod mount;
pub mod open_files;
pub(crate) mod page_cache;
mod private_mounts;
mod statmount;
mod superblock;
mod uevents;
mod unmount;

pub use known::MountQueries;
pub use uevents::LoopNotices;

/// The kernel of this machine, as seen from this process's mount namespace.
#[derive(Debug, Default)]
pub struct Linux {
    /// True if `/dev` is a devtmpfs; set at the first use.
    devtmpfs: OnceLock<bool>,
    asking: asking::Asking,
    /// For opens only, which work even on a device that hangs when it is queried.
    opening: asking::Asking,
    /// Minors at which threads attach files now. The kernel offers the same free device to all of
    /// them.
    attaching: UnderWay<u32>,
    /// For new images with ext4.
    templates: fs_tools::Templates,
    /// `None` if each call reads all loop devices and mounts.
    known: Option<known::Known>,
}

impl Linux {
    /// Creates a handle, without any call to the kernel.
    pub fn new() -> Linux {
        Linux::default()
    }

    /// Creates a handle that follows loop devices and mounts by the kernel's notices, so that a
    /// look costs the same with any number of them. It expects no more of the kernel than these
    /// queries. The first look attaches a loop device for an instant, to see that the kernel
    /// announces it.
    pub fn following(queries: MountQueries) -> Linux {
        Linux {
            known: Some(known::Known::new(queries)),
            ..Linux::default()
        }
    }

    /// What the driver lacks to serve volumes, each with a remedy; empty if it lacks nothing.
    /// [`Filesystems::filesystems`] checks the filesystems.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !rustix::process::geteuid().is_root() {
            missing.push("root: attaching and mounting need it".to_owned());
        }
        if let Err(e) = loopdev::control() {
            missing.push(format!(
                "loop devices: {e} (is the module `loop` loaded, and /dev the host's?)"
            ));
        }
        // The file exists only once the module is loaded; opening the control device above loads
        // it.
        let max_part = std::fs::read_to_string("/sys/module/loop/parameters/max_part");
        missing.extend(refuse_partitions(&max_part.unwrap_or_default()));
        for dir in ["/sys/block", "/proc/self"] {
            if let Err(e) = std::fs::metadata(dir) {
                missing.push(format!("{dir}: {e}"));
            }
        }
        missing
    }
}

impl LoopDevices for Linux {
    fn boot_id(&self) -> Result<String> {
        let path = "/proc/sys/kernel/random/boot_id";
        let id = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
        Ok(id.trim_end().to_owned())
    }

    fn loop_attach(&self, spec: &LoopSpec<'_>) -> Result<LoopDevice> {
        phase("loop attach", || loopdev::attach(self, spec))
    }

    fn loops(&self) -> Result<Vec<LoopInfo>> {
        let loops = loopdev::infos(self, &loopdev::attached_minors()?);
        loopdev::keep_spares(self, &loops);
        Ok(loops)
    }

    fn known_loops(&self, scope: LoopScope<'_>) -> Result<KnownLoops> {
        let Some(known) = &self.known else {
            return Ok(self.loops()?.into());
        };
        let loops = known.loops(self, scope)?;
        // The driver looks at the devices before each publication of a block volume.
        loopdev::keep_spares(self, loops.iter());
        Ok(loops)
    }

    fn forget_loops(&self) {
        if let Some(known) = &self.known {
            known.forget_loops();
        }
    }

    fn confirm_loops(&self, loops: &[&LoopInfo]) -> bool {
        self.known
            .as_ref()
            .is_none_or(|known| known.confirm_loops(self, loops))
    }

    fn loop_info(&self, minor: u32) -> Result<Option<LoopInfo>> {
        Ok(loopdev::infos(self, &[minor]).pop())
    }

    fn loop_diskseq(&self, minor: u32) -> Result<Option<u64>> {
        loopdev::diskseq(minor)
    }

    fn loop_open(&self, minor: u32, backing: FileId) -> Result<LoopDevice> {
        loopdev::open(self, minor, backing)
    }

    fn loop_detach(&self, minor: u32, backing: FileId) -> Result<Detached> {
        phase("loop detach", || loopdev::detach(self, minor, backing))
    }

    fn loop_detach_silent(&self, minor: u32, backing_path: &str) -> Result<Detached> {
        phase("loop detach", || {
            loopdev::detach_silent(self, minor, backing_path)
        })
    }

    fn loop_size(&self, device: &LoopDevice) -> Result<u64> {
        device_size(&device.file, &device.path())
    }

    fn loop_grow(&self, device: &LoopDevice) -> Result<()> {
        phase("loop grow", || loopdev::grow(device))
    }

    fn loop_limit(&self, device: &LoopDevice, bytes: u64) -> Result<()> {
        phase("loop limit", || loopdev::limit(device, bytes))
    }

    fn loop_set_direct_io(&self, device: &LoopDevice, on: bool) -> Result<bool> {
        loopdev::set_direct_io(device, on)
    }

    fn loop_set_read_ahead(&self, device: &LoopDevice, kib: u32) -> Result<()> {
        loopdev::set_read_ahead(device, kib)
    }

    fn check_device_attributes(&self) -> Result<()> {
        attributes::check()
    }

    fn holders(&self, device: &Path) -> Vec<String> {
        holders::of(device)
    }

    fn is_claimed(&self, device: &Path) -> Result<bool> {
        loopdev::is_claimed(device)
    }

    fn loop_flush(&self, device: &LoopDevice) -> Result<()> {
        phase("flush", || loopdev::flush(device))
    }

    fn loop_writes(&self, minor: u32) -> Result<u64> {
        loopdev::writes(minor)
    }

    fn loop_drop_cache(&self, device: &LoopDevice) -> Result<()> {
        loopdev::drop_cache(device)
    }
}

impl Mounts for Linux {
    fn mounts(&self) -> Result<MountTable> {
        mount::table()
    }

    fn known_mounts(&self) -> Result<MountTable> {
        match &self.known {
            Some(known) => known.mounts(),
            None => mount::table(),
        }
    }

    fn forget_mounts(&self) {
        if let Some(known) = &self.known {
            known.forget_mounts();
        }
    }

    fn confirm_mounts(&self, mounts: &[&MountEntry], at: &[(&Path, Option<&MountEntry>)]) -> bool {
        self.known
            .as_ref()
            .is_none_or(|known| known.confirm_mounts(mounts, at))
    }

    fn is_shared(&self, dir: &Path) -> Result<bool> {
        mount::is_shared(dir)
    }

    fn mount(&self, spec: &MountSpec<'_>) -> Result<()> {
        phase("mount", || {
            mount::mount(spec)?;
            if spec.fs == FsType::Xfs
                && let Err(e) = mount::device_number(spec.device).and_then(mount::xfs_gives_up)
            {
                // No mount is better than one that can hang without limit.
                let _ = unmount::just_mounted(spec);
                return Err(e);
            }
            Ok(())
        })
    }

    fn retry_forever(&self, xfs: &Path) -> Result<()> {
        mount::xfs_retries_forever(xfs)
    }

    fn bind(&self, source: &Path, target: &Path, flags: BindFlags) -> Result<()> {
        phase("bind mount", || mount::bind(source, target, flags))
    }

    fn remount_discard(&self, target: &Path, fs: FsType, on: bool) -> Result<()> {
        phase("remount", || mount::remount_discard(target, fs, on))
    }

    fn unmount_exactly(&self, mount: &MountEntry) -> Result<()> {
        phase("unmount", || unmount::exactly(mount))?;
        if let Some(known) = &self.known {
            known.unmounted(&mount.mount_point);
        }
        Ok(())
    }

    fn unmount(&self, target: &Path) -> Result<()> {
        let top = topmost_mount(self, target)?;
        self.unmount_exactly(&top.ok_or_else(|| Error::errno("unmount", target, libc::ENOENT))?)
    }

    fn open_mount(&self, mount: &MountEntry) -> Result<File> {
        file::open_mount(mount)
    }
}

impl Filesystems for Linux {
    fn probe(&self, device: &Path) -> Result<Probe> {
        phase("probe", || fs_tools::probe(device))
    }

    fn superblock(&self, device: &Path, fs: FsType) -> Result<Option<Superblock>> {
        superblock::read(device, fs)
    }

    fn fs_state(&self, device: &Path, fs: FsType) -> Result<FsState> {
        superblock::state(device, fs)
    }

    fn open_filesystem(&self, device: &Path, fs: FsType) -> Result<File> {
        phase("mount", || detached::open(device, fs))
    }

    fn mkfs(&self, spec: &MkfsSpec<'_>) -> Result<()> {
        phase("mkfs", || fs_tools::mkfs(&self.templates, spec))
    }

    fn check(&self, device: &Path, fs: FsType) -> Result<()> {
        phase("check", || fs_tools::check(device, fs))
    }

    fn grow(&self, device: &Path, mounted_at: &Path, fs: FsType) -> Result<()> {
        phase("grow", || fs_tools::grow(device, mounted_at, fs))
    }

    fn ext4(&self, device: &Path) -> Result<Option<Ext4>> {
        superblock::ext4(device)
    }

    fn check_whole(&self, device: &Path) -> Result<()> {
        phase("check", || fs_tools::check_whole(device))
    }

    fn grow_unmounted(&self, device: &Path) -> Result<()> {
        phase("grow", || fs_tools::grow_unmounted(device))
    }

    fn mend_growth(&self, device: &Path, superblock: &[u8], whole: bool) -> Result<()> {
        phase("check", || fs_tools::mend_growth(device, superblock, whole))
    }

    fn grows_mounted(&self, fs: FsType) -> bool {
        fs_tools::grows_mounted(fs)
    }

    fn fs_size(&self, mounted_at: &Path, device: &Path, fs: FsType) -> Result<u64> {
        fs::size(mounted_at, device, fs)
    }

    fn freeze(&self, on: &File) -> Result<Freeze> {
        phase("freeze", || fs::freeze(on))
    }

    fn thaw(&self, on: &File) -> Result<()> {
        phase("thaw", || fs::thaw(on))
    }

    fn shut_down(&self, on: &File) -> Result<()> {
        phase("shut down", || fs::shut_down(on))
    }

    fn trigger_error(&self, minor: u32) -> Result<()> {
        fs::trigger_error(minor)
    }

    fn sync_fs(&self, on: &File) -> Result<()> {
        file::sync_fs(on)
    }

    fn usage_of(&self, on: BorrowedFd<'_>) -> Result<FsUsage> {
        file::usage(on)
    }

    fn usage(&self, at: &Path) -> Result<FsUsage> {
        fs::usage(at)
    }

    fn can_clone(&self, dir: BorrowedFd<'_>) -> Result<bool> {
        file::can_clone(dir)
    }

    fn clone_file(&self, from: &File, to: &File) -> Result<()> {
        file::clone(from, to)
    }

    fn clone_in_steps(
        &self,
        from: &File,
        to: &File,
        pace: Pace,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        extents::clone::clone_in_steps(from, to, pace, stop)
    }

    fn common_bytes(&self, base: &File, target: &File) -> Result<u64> {
        extents::common_bytes(base, target)
    }

    fn shared_bytes(&self, file: &File) -> Result<u64> {
        extents::shared_bytes(file)
    }

    fn allocate(&self, file: &File, range: Range<u64>) -> Result<()> {
        file::allocate(file, range)
    }

    fn fs_errors(&self, mounted_at: &Path, minor: u32, fs: FsType) -> Result<Option<String>> {
        fs::errors(mounted_at, minor, fs)
    }

    fn renames_whole(&self, on: BorrowedFd<'_>) -> bool {
        fs::renames_whole(on)
    }

    fn offers(&self, fs: FsType) -> std::result::Result<(), String> {
        fs_tools::offered(fs)
    }
}

/// Starts to write a file to the disk without waiting for it (sync_file_range). An error names the
/// file `what`.
pub fn start_sync(file: &File, what: &Path) -> Result<()> {
    ioctl::start_writeback(file).map_err(|e| Error::io("sync_file_range", what, e))
}

/// Rejects loop devices with partitions (module parameter `max_part`). If it is not 0, the minor of
/// `/dev/loopN` is a multiple of N, with partitions in between. The kernel then also scans each
/// device for a partition table, which a user of the volume may have written. This driver
/// identifies devices by N.
fn refuse_partitions(max_part: &str) -> Option<String> {
    let max_part = max_part.trim();
    let with = !max_part.is_empty() && max_part != "0";
    with.then(|| {
        format!(
            "loop devices without partitions: the module `loop` has max_part={max_part}, which \
             changes the devices' numbers. Set loop.max_part=0 (on the kernel's command line, or \
             `options loop max_part=0` in /etc/modprobe.d) and reboot"
        )
    })
}

/// Reads a small kernel file as text, without the newline at its end.
fn read_attribute(path: &Path) -> Result<String> {
    let text = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
}

/// Opens a directory or a device for reading.
fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| Error::io("open", path, e))
}

/// Size of an open block device, in bytes.
fn device_size(device: &File, path: &Path) -> Result<u64> {
    rustix::fs::seek(device, rustix::fs::SeekFrom::End(0))
        .map_err(|e| Error::io("lseek", path, e.into()))
}

/// `/sys/block/loopN/…`.
fn sysfs(minor: u32, attribute: &str) -> PathBuf {
    PathBuf::from(format!("/sys/block/loop{minor}/{attribute}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_devices_with_partitions_are_refused() {
        for without in ["", "0", "0\n"] {
            assert_eq!(refuse_partitions(without), None, "{without:?}");
        }
        for with in ["1\n", "15\n", "255"] {
            let why = refuse_partitions(with).unwrap();
            assert!(why.contains(&format!("max_part={}", with.trim())), "{why}");
            assert!(why.contains("loop.max_part=0"), "{why}");
        }
    }
}
