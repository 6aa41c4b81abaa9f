//! The nodes of loop devices in `/dev`, which a static `/dev` lacks.

use std::collections::HashSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};

use super::is;
use crate::failpoint::effect;
use crate::linux::{Linux, mount};
use crate::{Error, LOOP_MAJOR, LoopInfo, Result, loop_path};

/// Number of nodes of free devices to keep in a static `/dev`. Kubelet's losetup fails without the
/// node of the device that is free at that moment. Other users of the machine (for example, kind
/// nodes) take devices, too, and a device that they free gets no node here. So this is more than a
/// few.
const SPARE_NODES: usize = 16;

/// The minor of a loop device's node; `None` for any other file.
fn loop_node(metadata: &Metadata) -> Option<u32> {
    let rdev = metadata.rdev();
    let is_loop = metadata.file_type().is_block_device() && rustix::fs::major(rdev) == LOOP_MAJOR;
    is_loop.then(|| rustix::fs::minor(rdev))
}

/// Opens `/dev/loopN`. Creates the node first if `/dev` does not do so.
pub(super) fn open_node(makes_nodes: bool, minor: u32, write: bool) -> Result<File> {
    let path = loop_path(minor);
    let mut options = OpenOptions::new();
    options.read(true).write(write);
    let mut opened = options.open(&path);
    if matches!(&opened, Err(e) if is(e, libc::ENOENT)) {
        if makes_nodes {
            // devtmpfs creates the node in a moment.
            sleep(Duration::from_millis(10));
        }
        make_node(minor)?;
        opened = options.open(&path);
    }
    let file = opened.map_err(|e| Error::io("open", &path, e))?;
    let metadata = file.metadata().map_err(|e| Error::io("fstat", &path, e))?;
    if loop_node(&metadata) != Some(minor) {
        let e = io::Error::other("this is not the loop device it should be");
        return Err(Error::io("open", path, e));
    }
    Ok(file)
}

/// Creates `/dev/loopN` if it is missing.
fn make_node(minor: u32) -> Result<()> {
    let path = loop_path(minor);
    if path.exists() {
        return Ok(());
    }
    effect("loop.node").map_err(|e| Error::io("mknod", &path, e))?;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
    let device = rustix::fs::makedev(LOOP_MAJOR, minor);
    match rustix::fs::mknodat(CWD, &path, FileType::BlockDevice, mode, device) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        made => made.map_err(|e| Error::io("mknod", &path, e.into())),
    }
}

/// Keeps nodes of the lowest free devices in a static `/dev`. Kubelet attaches a loop device to
/// block volumes, and its losetup takes the lowest free one.
pub(in crate::linux) fn keep_spares<'a>(
    linux: &Linux,
    attached: impl IntoIterator<Item = &'a LoopInfo>,
) {
    if linux.dev_makes_nodes() {
        return;
    }
    let attached: HashSet<u32> = attached.into_iter().map(|info| info.minor).collect();
    let free = (0..).filter(|minor| !attached.contains(minor));
    for minor in free.take(SPARE_NODES) {
        if let Err(e) = make_node(minor) {
            tracing::warn!("no spare loop device for others: {e}");
            return;
        }
    }
}

impl Linux {
    /// True if `/dev` is a devtmpfs, in which the kernel creates device nodes.
    pub(super) fn dev_makes_nodes(&self) -> bool {
        *self.devtmpfs.get_or_init(|| {
            mount::table().is_ok_and(|table| {
                table
                    .at(Path::new("/dev"))
                    .is_some_and(|entry| *entry.fs_type == *"devtmpfs")
            })
        })
    }
}
