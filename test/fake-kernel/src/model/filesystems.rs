//! The model's filesystems, as [`Filesystems`].

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use hostloop_events::phase;
use hostloop_kernel::file::{self, Pace, name_of};
use hostloop_kernel::{
    Error, Ext4, Ext4Growth, Filesystems, Freeze, FsState, FsType, FsUsage, MkfsSpec, Probe,
    Result, Superblock, check_mkfs_options, extents, loop_path,
};

use super::Model;
use super::content::Content;
use super::mounting::{mountable, place, replay};
use super::state::{Device, State};

impl Filesystems for Model {
    fn probe(&self, device: &Path) -> Result<Probe> {
        self.ask("probe", device, |s| Ok(s.content(device)?.probe()))
    }

    /// The model's superblocks have no checksums, so [`Filesystems::probe`] has to say what a device
    /// holds.
    fn superblock(&self, _device: &Path, _fs: FsType) -> Result<Option<Superblock>> {
        Ok(None)
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

    fn mkfs(&self, spec: &MkfsSpec<'_>) -> Result<()> {
        phase("mkfs", || {
            let failed =
                |why: &str| Error::tool(format!("mkfs.{}", spec.fs), spec.device, Some(1), why);
            check_mkfs_options(spec.fs, spec.options).map_err(|why| failed(&why))?;
            let late = self.enter("mkfs", spec.device, true)?;
            let tables = self.script.lock().tables;
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
                s.overwrite(spec.device, &content)?;
                if late.is_none() {
                    s.write_tables(spec.device, tables)?;
                }
                Ok(())
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

    fn fs_size(&self, mounted_at: &Path, device: &Path, fs: FsType) -> Result<u64> {
        self.ask("fs_size", mounted_at, |s| match s.content(device)? {
            Content::Filesystem { fs: is, size, .. } if is == fs => Ok(size),
            _ => Err(Error::errno("fs_size", device, libc::EINVAL)),
        })
    }

    fn freeze(&self, on: &File) -> Result<Freeze> {
        let path = name_of(on);
        self.act("freeze", &path, |s| {
            let is_frozen = s.super_of(&path).map(|sb| sb.frozen);
            let is_frozen =
                is_frozen.ok_or_else(|| Error::errno("FIFREEZE", &path, libc::EOPNOTSUPP))?;
            if is_frozen {
                return Ok(Freeze::AlreadyFrozen);
            }
            s.sync(&path)?;
            if let Some(sb) = s.super_of(&path) {
                sb.frozen = true;
            }
            Ok(Freeze::Frozen)
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

    fn shut_down(&self, on: &File) -> Result<()> {
        let path = name_of(on);
        self.act("shut-down", &path, |s| {
            let sb = s.super_of(&path).filter(|sb| sb.fs != FsType::Btrfs);
            let sb = sb.ok_or_else(|| Error::errno("shut down", &path, libc::ENOTTY))?;
            sb.shut_down = true;
            let source = sb.source.clone();
            // Its journal has what the next mount replays.
            if let Content::Filesystem {
                fs,
                uuid,
                size,
                needs_check,
                ..
            } = s.content(&source)?
            {
                let content = Content::Filesystem {
                    fs,
                    uuid,
                    size,
                    unreplayed: true,
                    needs_check,
                };
                s.set_content(&source, &content)?;
            }
            Ok(())
        })
    }

    fn trigger_error(&self, minor: u32) -> Result<()> {
        let path = loop_path(minor);
        self.act("trigger-error", &path, |s| {
            let sb = s.supers.get_mut(&Device::Loop(minor));
            let sb = sb.filter(|sb| sb.fs == FsType::Ext4);
            let sb = sb.ok_or_else(|| Error::errno("write", &path, libc::ENOENT))?;
            sb.read_only = true;
            Ok(())
        })
    }

    /// Not an effect of the model. The machine's own filesystem has other users, and stays alone.
    fn sync_fs(&self, on: &File) -> Result<()> {
        let path = name_of(on);
        self.settled(|s| s.sync(&path))
    }

    fn usage_of(&self, on: BorrowedFd<'_>) -> Result<FsUsage> {
        let usage = file::usage(on)?;
        let disk = self.script.lock().disk.clone();
        Ok(disk.map_or(usage, |disk| disk(&name_of(on), usage)))
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

    fn can_clone(&self, dir: BorrowedFd<'_>) -> Result<bool> {
        let reflinks = self.script.lock().reflinks;
        reflinks.map_or_else(|| file::can_clone(dir), Ok)
    }

    fn clone_file(&self, from: &File, to: &File) -> Result<()> {
        let reflinks = self.script.lock().reflinks;
        match reflinks {
            None => file::clone(from, to),
            Some(true) => {
                file::copy_sparse(from, to, Pace::Fast, &|| false)?;
                self.shared_blocks().share(from, to)
            }
            Some(false) => Err(Error::errno("FICLONE", name_of(to), libc::EOPNOTSUPP)),
        }
    }

    fn clone_in_steps(
        &self,
        from: &File,
        to: &File,
        pace: Pace,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        let reflinks = self.script.lock().reflinks;
        match reflinks {
            None => extents::clone::clone_in_steps(from, to, pace, stop),
            Some(_) => self.clone_file(from, to),
        }
    }

    fn common_bytes(&self, base: &File, target: &File) -> Result<u64> {
        let reflinks = self.script.lock().reflinks;
        match reflinks {
            None => extents::common_bytes(base, target),
            Some(_) => self.shared_blocks().common_bytes(base, target),
        }
    }

    fn shared_bytes(&self, file: &File) -> Result<u64> {
        let reflinks = self.script.lock().reflinks;
        match reflinks {
            None => extents::shared_bytes(file),
            Some(_) => self.shared_blocks().shared_bytes(file),
        }
    }

    /// Not an effect of the model: the file is the machine's own.
    fn allocate(&self, file: &File, range: Range<u64>) -> Result<()> {
        let late = self.enter("allocate", &name_of(file), false)?;
        file::allocate(file, range)?;
        late.map_or(Ok(()), Err)
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
        if self.script.lock().absent.contains(&fs) {
            Err(format!("mkfs.{fs} is not installed"))
        } else {
            Ok(())
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
