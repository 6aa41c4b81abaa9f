//! A FUSE filesystem without a path.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

use crate::fuse_message::{self, HEAD};
use crate::slots::Slot;
use crate::{Error, Result};

/// A filesystem that the kernel has made, and that no one can open yet.
#[derive(Debug)]
pub(crate) struct Mount {
    /// Where its requests come from.
    pub(crate) fuse: OwnedFd,
    context: OwnedFd,
}

impl Mount {
    /// Makes a filesystem, and answers its first request.
    pub(crate) fn new(slot: &mut Slot) -> Result<Mount> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fuse = rustix::fs::open("/dev/fuse", flags, Mode::empty())
            .map_err(|e| Error::system("to open /dev/fuse (is the module `fuse` loaded?)", e))?;
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|e| Error::system("to open a FUSE filesystem", e))?;
        let number = fuse.as_raw_fd().to_string();
        let options = [
            ("fd", number.as_str()),
            ("rootmode", "40000"),
            ("user_id", "0"),
            ("group_id", "0"),
            ("source", "hostloop-fault-disk"),
        ];
        for (key, value) in options {
            fsconfig_set_string(context.as_fd(), key, value)
                .map_err(|e| Error::system(format!("to set {key} of a FUSE filesystem"), e))?;
        }
        fsconfig_create(context.as_fd())
            .map_err(|e| Error::system("to make a FUSE filesystem (it needs CAP_SYS_ADMIN)", e))?;
        let mount = Mount { fuse, context };
        mount.begin(slot)?;
        Ok(mount)
    }

    fn begin(&self, slot: &mut Slot) -> Result<()> {
        let len = read(&self.fuse, slot)
            .map_err(|e| Error::system("to read the first request of FUSE", e))?;
        let head: &[u8; HEAD] = &slot.head;
        let offer = fuse_message::parse_init(head, len)
            .ok_or_else(|| Error::Message("the first request of FUSE is not INIT".to_owned()))?;
        let answer = fuse_message::init(&offer).map_err(Error::Message)?;
        write(&self.fuse, offer.unique, 0, &answer)
            .map_err(|e| Error::system("to answer the first request of FUSE", e))
    }

    /// Opens its file under this name. Threads must answer its requests. The filesystem ends with
    /// the last user of the file.
    pub(crate) fn open(context: OwnedFd, name: &str) -> Result<File> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .map_err(|e| Error::system("to mount a FUSE filesystem", e))?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(mount, name, flags, Mode::empty())
            .map_err(|e| Error::system(format!("to open the fault disk {name}"), e))?;
        Ok(file.into())
    }

    pub(crate) fn into_parts(self) -> (OwnedFd, OwnedFd) {
        (self.fuse, self.context)
    }
}

/// Waits for a request, and reads it: its length.
pub(crate) fn read(fuse: impl AsFd, slot: &mut Slot) -> rustix::io::Result<usize> {
    let mut parts = [
        std::io::IoSliceMut::new(&mut slot.head[..]),
        std::io::IoSliceMut::new(&mut slot.data),
    ];
    rustix::io::readv(fuse, &mut parts)
}

/// Answers a request.
pub(crate) fn write(
    fuse: impl AsFd,
    unique: u64,
    error: i32,
    answer: &[u8],
) -> rustix::io::Result<()> {
    let header = fuse_message::header(unique, error, answer.len());
    let parts = [
        std::io::IoSlice::new(&header),
        std::io::IoSlice::new(answer),
    ];
    rustix::io::writev(fuse, &parts).map(drop)
}
