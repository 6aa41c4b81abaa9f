//! Implements [`Kernel`] for the model.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use hostloop_events::phase;
use hostloop_kernel::file::{self, Pace, name_of};
use hostloop_kernel::{
    BindFlags, Detached, Error, Ext4, Ext4Growth, FileId, Freeze, FsState, FsType, FsUsage, Kernel,
    KnownLoops, LoopDevice, LoopInfo, LoopScope, LoopSpec, MkfsSpec, MountEntry, MountSpec,
    MountTable, Probe, Result, Superblock, check_mkfs_options, extents, loop_path,
};

use super::Model;
use super::content::Content;
use super::mounting::{bind, mount, mountable, place, replay};
use super::state::{Device, State};

impl Kernel for Model {
    /// The model knows all of its devices and mounts, always as they are.
    fn known_loops(&self, _scope: LoopScope<'_>) -> Result<KnownLoops> {
        Ok(self.loops()?.into())
    }

    fn known_mounts(&self) -> Result<MountTable> {
        self.mounts()
    }

    fn forget(&self) {}

    fn confirm(
        &self,
        _loops: &[&LoopInfo],
        _mounts: &[&MountEntry],
        _at: &[(&Path, Option<&MountEntry>)],
    ) -> bool {
        true
    }

    fn check_device_attributes(&self) -> Result<()> {
        Ok(())
    }

    /// Nothing but this process uses the model's devices.
    fn holders(&self, _device: &Path) -> Vec<String> {
        Vec::new()
    }

    /// No write of the model is ever retried.
    fn retry_forever(&self, _xfs: &Path) -> Result<()> {
        Ok(())
    }

    /// The model's superblocks have no checksums, so [`Kernel::probe`] has to say what a device
    /// holds.
    fn superblock(&self, _device: &Path, _fs: FsType) -> Result<Option<Superblock>> {
        Ok(None)
    }

    fn boot_id(&self) -> Result<String> {
        Ok(self.script.lock().boot_id.clone())
    }

    fn loop_attach(&self, spec: &LoopSpec<'_>) -> Result<LoopDevice> {
        self.act("loop.attach", &name_of(spec.backing), |s| s.attach(spec))
    }

    fn loops(&self) -> Result<Vec<LoopInfo>> {
        self.ask("loops", Path::new("/sys/block"), |s| {
            Ok(s.loops.keys().filter_map(|minor| s.info(*minor)).collect())
        })
    }

    fn loop_info(&self, minor: u32) -> Result<Option<LoopInfo>> {
        self.ask("loop_info", &loop_path(minor), |s| Ok(s.info(minor)))
    }

    fn loop_open(&self, minor: u32, backing: FileId) -> Result<LoopDevice> {
        let path = loop_path(minor);
        self.ask("loop_open", &path, |s| match s.loops.get(&minor) {
            Some(slot) if slot.silent => Err(Error::errno("LOOP_GET_STATUS64", &path, libc::EIO)),
            Some(slot) if slot.backing == backing => s.open(minor),
            _ => Err(Error::errno("open", &path, libc::ENOENT)),
        })
    }

    fn loop_detach(&self, minor: u32, backing: FileId) -> Result<Detached> {
        let path = loop_path(minor);
        self.detach(minor, |s| match s.loops.get(&minor) {
            Some(slot) if slot.silent => Err(Error::errno("LOOP_GET_STATUS64", &path, libc::EIO)),
            slot => Ok(slot.is_some_and(|slot| slot.backing == backing)),
        })
    }

    fn loop_detach_silent(&self, minor: u32, backing_path: &str) -> Result<Detached> {
        self.detach(minor, |s| {
            let info = s.info(minor);
            Ok(info.is_some_and(|info| info.backing_path == backing_path))
        })
    }

    fn loop_size(&self, device: &LoopDevice) -> Result<u64> {
        self.ask("loop_size", &device.path(), |s| {
            Ok(s.info(device.minor).map_or(0, |l| l.size_bytes))
        })
    }

    fn loop_grow(&self, device: &LoopDevice) -> Result<()> {
        self.act("loop.grow", &device.path(), |s| s.resize(device.minor))
    }

    fn loop_set_direct_io(&self, device: &LoopDevice, on: bool) -> Result<bool> {
        self.act("loop.direct-io", &device.path(), |s| {
            let buffered = s.buffered.clone();
            let slot = s.slot(device.minor, "LOOP_SET_DIRECT_IO")?;
            slot.direct_io = on && !buffered.contains(&slot.backing);
            Ok(slot.direct_io)
        })
    }

    fn loop_set_read_ahead(&self, device: &LoopDevice, kib: u32) -> Result<()> {
        self.act("loop.read-ahead", &device.path(), |s| {
            s.slot(device.minor, "read_ahead_kb")?.read_ahead_kib = kib;
            Ok(())
        })
    }

    fn loop_flush(&self, device: &LoopDevice) -> Result<()> {
        self.act("loop.flush", &device.path(), |s| {
            s.slot(device.minor, "fsync").map(drop)
        })
    }

    fn loop_writes(&self, minor: u32) -> Result<u64> {
        self.ask("loop_writes", &loop_path(minor), |s| {
            s.slot(minor, "stat").map(|_| 0)
        })
    }

    fn loop_drop_cache(&self, device: &LoopDevice) -> Result<()> {
        self.act("loop.drop-cache", &device.path(), |s| {
            s.slot(device.minor, "drop").map(drop)
        })
    }

    fn mounts(&self) -> Result<MountTable> {
        self.ask("mounts", Path::new("/proc/self/mountinfo"), |s| {
            Ok(s.table())
        })
    }

    fn mount(&self, spec: &MountSpec<'_>) -> Result<()> {
        self.act("mount", spec.target, |s| mount(s, spec))
    }

    fn bind(&self, source: &Path, target: &Path, flags: BindFlags) -> Result<()> {
        self.act("bind", target, |s| bind(s, source, target, flags))
    }

    fn remount_discard(&self, target: &Path, _fs: FsType, on: bool) -> Result<()> {
        self.act("remount", target, |s| {
            let path = place("remount", target)?;
            let at = s.at(&path).and_then(|m| m.device);
            let sb = at.and_then(|device| s.supers.get_mut(&device));
            let sb = sb.ok_or_else(|| Error::errno("remount", target, libc::EINVAL))?;
            sb.set_discard(on);
            Ok(())
        })
    }

    fn unmount_exactly(&self, mount: &MountEntry) -> Result<()> {
        let path = &*mount.mount_point;
        self.act("unmount", path, |s| {
            let Some(top) = s.at(path).map(|m| m.entry.id) else {
                return Err(Error::errno("unmount", path, libc::ENOENT));
            };
            if top != mount.id {
                return Err(Error::Covered {
                    op: "unmount",
                    path: path.to_path_buf(),
                });
            }
            let has_children = s.mounts.iter().any(|m| m.entry.parent == top);
            if has_children || s.busy.iter().any(|busy| busy == path) {
                return Err(Error::errno("unmount", path, libc::EBUSY));
            }
            // An unmounted frozen filesystem leaves the table like any other, and stays frozen.
            s.mounts.retain(|m| m.entry.id != top);
            Ok(())
        })
    }

    fn fs_state(&self, device: &Path, fs: FsType) -> Result<FsState> {
        self.settled(|s| match s.content(device)? {
            Content::Filesystem {
                fs: FsType::Ext4,
                unreplayed,
                needs_check,
                ..
            } if fs == FsType::Ext4 => Ok(FsState {
                unreplayed,
                needs_check,
            }),
            _ => Ok(FsState::default()),
        })
    }

    fn open_filesystem(&self, device: &Path, fs: FsType) -> Result<File> {
        self.act("mount", device, |s| {
            let found = mountable(s, device, fs).map_err(|number| {
                let why = std::io::Error::from_raw_os_error(number).to_string();
                Error::NotMountable {
                    path: device.to_path_buf(),
                    why,
                }
            });
            replay(s, device)?;
            found.and_then(|_| s.open_node(device))
        })
    }

    fn probe(&self, device: &Path) -> Result<Probe> {
        self.ask("probe", device, |s| Ok(s.content(device)?.probe()))
    }

    fn mkfs(&self, spec: &MkfsSpec<'_>) -> Result<()> {
        phase("mkfs", || {
            let failed =
                |why: &str| Error::tool(format!("mkfs.{}", spec.fs), spec.device, Some(1), why);
            check_mkfs_options(spec.fs, spec.options).map_err(|why| failed(&why))?;
            let late = self.enter("mkfs", spec.device, true)?;
            self.settled(|s| {
                let size = s.size(spec.device)?;
                let is_blank = matches!(s.content(spec.device)?, Content::Blank | Content::Unknown);
                let refused = if s.is_mounted(spec.device) {
                    Some("the device is mounted")
                } else if size < spec.fs.minimum_bytes() {
                    Some("the device is too small")
                } else if !s.takes_writes(spec.device)? {
                    Some("the device is read-only")
                } else if !is_blank && !spec.force && spec.fs != FsType::Ext4 {
                    Some("the device appears to contain something")
                } else {
                    None
                };
                if let Some(message) = refused {
                    return Err(failed(message));
                }
                let fs = spec.fs;
                let uuid = spec
                    .uuid
                    .map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
                let content = match &late {
                    // A discard erases the superblock first; the rest has no signature.
                    Some(_) if spec.force && spec.discard => Content::Unknown,
                    Some(_) => Content::Broken { fs, uuid },
                    None => Content::filesystem(fs, uuid, size),
                };
                s.set_content(spec.device, &content)
            })?;
            late.map_or(Ok(()), Err)
        })
    }

    fn check(&self, device: &Path, fs: FsType) -> Result<()> {
        if fs != FsType::Ext4 {
            return Ok(());
        }
        self.act("check", device, |s| checked(s, device))
    }

    fn grow(&self, device: &Path, mounted_at: &Path, fs: FsType) -> Result<()> {
        if self.settled(|s| Ok(s.content(device)?.size() >= Some(s.size(device)?)))? {
            return Ok(());
        }
        let permitted = self.grows_mounted(fs);
        self.act("grow", device, |s| {
            let path = place("grow", mounted_at)?;
            let wanted = s.device(device)?;
            let mounted = s.at(&path).and_then(|m| m.device) == Some(wanted);
            let writable = s.supers.get(&wanted).is_some_and(|sb| !sb.read_only);
            let writable = writable && permitted;
            let now = s.size(device)?;
            match s.content(device)? {
                Content::Filesystem { fs: is, uuid, .. }
                    if is == fs && mounted && writable && now >= fs.minimum_grown_bytes() =>
                {
                    s.set_content(device, &Content::filesystem(fs, uuid, now))
                }
                _ => {
                    let why = "not mounted there for writing";
                    Err(Error::tool(format!("grow {fs}"), device, Some(1), why))
                }
            }
        })
    }

    fn ext4(&self, device: &Path) -> Result<Option<Ext4>> {
        self.ask("ext4", device, |s| {
            let content = s.content(device)?;
            Ok(content.ext4_layout().map(|layout| {
                let superblock = b"of the model".as_slice().into();
                Ext4 { layout, superblock }
            }))
        })
    }

    fn check_whole(&self, device: &Path) -> Result<()> {
        self.act("check-whole", device, |s| checked(s, device))
    }

    fn grow_unmounted(&self, device: &Path) -> Result<()> {
        let now = self.settled(|s| s.size(device))?;
        let (layout, is_unreplayed) = self.settled(|s| {
            let content = s.content(device)?;
            let is_unreplayed = matches!(
                content,
                Content::Filesystem {
                    unreplayed: true,
                    ..
                }
            );
            Ok((content.ext4_layout(), is_unreplayed))
        })?;
        if is_unreplayed {
            return Err(not_replayed(device));
        }
        match layout.map(|layout| layout.growth(now, false)) {
            Some(Ext4Growth::Unmounted) => {}
            Some(Ext4Growth::Done) => return Ok(()),
            _ => {
                return Err(Error::tool(
                    "growing ext4",
                    device,
                    None,
                    "it does not grow",
                ));
            }
        }
        phase("grow", || {
            let late = self.enter("grow", device, true)?;
            self.settled(|s| {
                let Content::Filesystem { fs, uuid, .. } = s.content(device)? else {
                    return Err(Error::errno("grow", device, libc::EINVAL));
                };
                let content = match &late {
                    // What resize2fs leaves when it ends half-way.
                    Some(_) => Content::Broken { fs, uuid },
                    None => Content::filesystem(fs, uuid, now),
                };
                s.set_content(device, &content)
            })?;
            late.map_or(Ok(()), Err)
        })
    }

    fn mend_growth(&self, device: &Path, superblock: &[u8], whole: bool) -> Result<()> {
        self.act("mend", device, |s| {
            let content = match s.content(device)? {
                Content::Broken {
                    fs: FsType::Ext4,
                    uuid,
                } if whole && !superblock.is_empty() => {
                    // The model does not keep the earlier size; every size here is a beginning.
                    let size = FsType::Ext4.minimum_bytes();
                    Content::filesystem(FsType::Ext4, uuid, size)
                }
                content => content,
            };
            s.set_content(device, &content)
        })
    }

    fn grows_mounted(&self, fs: FsType) -> bool {
        fs != FsType::Ext4 || !self.script.lock().withheld
    }

    fn is_claimed(&self, device: &Path) -> Result<bool> {
        self.settled(|s| Ok(s.is_mounted(device)))
    }

    fn fs_size(&self, mounted_at: &Path, device: &Path, fs: FsType) -> Result<u64> {
        self.ask("fs_size", mounted_at, |s| match s.content(device)? {
            Content::Filesystem { fs: is, size, .. } if is == fs => Ok(size),
            _ => Err(Error::errno("fs_size", device, libc::EINVAL)),
        })
    }

    fn freeze(&self, on: &File) -> Result<Freeze> {
        let path = name_of(on);
        self.act("freeze", &path, |s| match s.super_of(&path) {
            Some(sb) if sb.frozen => Ok(Freeze::AlreadyFrozen),
            Some(sb) => {
                sb.frozen = true;
                Ok(Freeze::Frozen)
            }
            None => Err(Error::errno("FIFREEZE", &path, libc::EOPNOTSUPP)),
        })
    }

    fn thaw(&self, on: &File) -> Result<()> {
        let path = name_of(on);
        self.act("thaw", &path, |s| {
            if let Some(sb) = s.super_of(&path) {
                sb.frozen = false;
            }
            Ok(())
        })
    }

    fn open_mount(&self, mount: &MountEntry) -> Result<File> {
        let at = &mount.mount_point;
        match self.settled(|s| Ok(s.table()))?.at(at) {
            Some(topmost) if topmost.id == mount.id => {
                File::open(at).map_err(|e| Error::io("open", at, e))
            }
            _ => Err(Error::errno("open", at, libc::ENOENT)),
        }
    }

    /// The model has no dirty data, and the machine's own filesystem has other users.
    fn sync_fs(&self, _on: &File) -> Result<()> {
        Ok(())
    }

    fn usage_of(&self, on: BorrowedFd<'_>) -> Result<FsUsage> {
        let usage = file::usage(on)?;
        let disk = self.script.lock().disk.clone();
        Ok(disk.map_or(usage, |disk| disk(&name_of(on), usage)))
    }

    fn can_clone(&self, dir: BorrowedFd<'_>) -> Result<bool> {
        let reflinks = self.script.lock().reflinks;
        reflinks.map_or_else(|| file::can_clone(dir), Ok)
    }

    fn clone_file(&self, from: &File, to: &File) -> Result<()> {
        let reflinks = self.script.lock().reflinks;
        match reflinks {
            None => file::clone(from, to),
            Some(true) => file::copy_sparse(from, to, Pace::Fast, &|| false).map(drop),
            Some(false) => Err(Error::errno("FICLONE", name_of(to), libc::EOPNOTSUPP)),
        }
    }

    fn clone_in_steps(&self, from: &File, to: &File, stop: &dyn Fn() -> bool) -> Result<()> {
        let reflinks = self.script.lock().reflinks;
        match reflinks {
            None => extents::clone::clone_in_steps(from, to, stop),
            Some(_) => self.clone_file(from, to),
        }
    }

    fn allocate(&self, file: &File, len: u64) -> Result<()> {
        file::allocate(file, len)
    }

    fn usage(&self, at: &Path) -> Result<FsUsage> {
        self.ask("usage", at, |s| {
            let path = place("statvfs", at)?;
            let read_only = s.containing(&path).is_some_and(|m| m.entry.read_only());
            let Some(sb) = s.super_of(&path) else {
                // The model has no filesystem there, so use the machine's.
                let dir = File::open(at).map_err(|e| Error::io("open", at, e))?;
                return file::usage(dir.as_fd());
            };
            let (fs, source) = (sb.fs, sb.source.clone());
            let read_only = read_only || sb.read_only;
            let total = s.content(&source)?.size().unwrap_or_default();
            let inodes = if fs == FsType::Btrfs {
                0
            } else {
                total / 16384
            };
            Ok(FsUsage {
                total_bytes: total,
                free_bytes: total,
                available_bytes: total,
                total_inodes: inodes,
                free_inodes: inodes,
                read_only,
            })
        })
    }

    fn fs_errors(&self, mounted_at: &Path, minor: u32, _fs: FsType) -> Result<Option<String>> {
        self.ask("fs_errors", mounted_at, |s| {
            match s.supers.get(&Device::Loop(minor)) {
                Some(sb) => Ok(sb.errors.clone()),
                None => Err(Error::errno("fs_errors", mounted_at, libc::ENOENT)),
            }
        })
    }

    fn renames_whole(&self, _on: BorrowedFd<'_>) -> bool {
        !self.script.lock().without_journal
    }

    fn offers(&self, fs: FsType) -> std::result::Result<(), String> {
        match self.script.lock().absent.contains(&fs) {
            true => Err(format!("mkfs.{fs} is not installed")),
            false => Ok(()),
        }
    }
}

/// The result of e2fsck.
fn checked(s: &mut State, device: &Path) -> Result<()> {
    let message = match s.content(device)? {
        _ if s.is_mounted(device) => "the device is mounted",
        Content::Filesystem {
            unreplayed: true, ..
        } => return Err(not_replayed(device)),
        Content::Filesystem {
            fs: FsType::Ext4,
            uuid,
            size,
            ..
        } => {
            return s.set_content(device, &Content::filesystem(FsType::Ext4, uuid, size));
        }
        _ => "bad magic number in super-block",
    };
    Err(Error::tool("e2fsck", device, Some(1), message))
}

/// The error of a tool that would lose what is in the journal.
fn not_replayed(device: &Path) -> Error {
    Error::tool(
        "e2fsck",
        device,
        Some(4),
        "the journal was not replayed by a mount",
    )
}

impl Model {
    /// Detaches a device if `same` confirms that it is the expected one.
    fn detach(&self, minor: u32, same: impl Fn(&State) -> Result<bool>) -> Result<Detached> {
        if !self.settled(|s| same(s))? {
            return Ok(Detached::Gone);
        }
        self.act("loop.detach", &loop_path(minor), |s| {
            if !same(s)? {
                return Ok(Detached::Gone);
            }
            // The flag stays set while the device is held: it then detaches at its last close.
            s.slot(minor, "LOOP_CLR_FD")?.autoclear = true;
            s.settle();
            Ok(match s.loops.contains_key(&minor) {
                true => Detached::WhenClosed,
                false => Detached::Gone,
            })
        })
    }
}
