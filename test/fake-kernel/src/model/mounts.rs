//! The model's mounts, as [`Mounts`].

use std::fs::File;
use std::path::Path;

use hostloop_kernel::{
    BindFlags, Error, FsType, MountEntry, MountSpec, MountTable, Mounts, Result, topmost_mount,
};

use super::Model;
use super::mounting::{bind, mount, place};

impl Mounts for Model {
    fn mounts(&self) -> Result<MountTable> {
        self.ask("mounts", Path::new("/proc/self/mountinfo"), |s| {
            Ok(s.table())
        })
    }

    /// The model knows all of its mounts, always as they are.
    fn known_mounts(&self) -> Result<MountTable> {
        self.mounts()
    }

    /// The model has nothing to forget.
    fn forget_mounts(&self) {}

    /// A look of the model is never old.
    fn confirm_mounts(
        &self,
        _mounts: &[&MountEntry],
        _at: &[(&Path, Option<&MountEntry>)],
    ) -> bool {
        true
    }

    fn is_shared(&self, _dir: &Path) -> Result<bool> {
        Ok(!self.script.lock().private)
    }

    fn mount(&self, spec: &MountSpec<'_>) -> Result<()> {
        self.act("mount", spec.target, |s| mount(s, spec))
    }

    /// No write of the model is ever retried.
    fn retry_forever(&self, _xfs: &Path) -> Result<()> {
        Ok(())
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

    fn unmount(&self, target: &Path) -> Result<()> {
        let top = topmost_mount(self, target)?;
        self.unmount_exactly(&top.ok_or_else(|| Error::errno("unmount", target, libc::ENOENT))?)
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
}
