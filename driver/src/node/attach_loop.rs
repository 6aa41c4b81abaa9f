//! Attaches the loop device of a volume, or uses the attached one. An image has at most one.

use std::fs::File;

use super::{Error, Node, Result};
use crate::diagnose::VolumeState;
use crate::kernel::{
    self, FileId, Kernel, LoopDevice, LoopInfo, LoopSpec, file, file_id, loop_names, loops_holding,
};
use crate::storage::VolumeRecord;

/// What a volume's loop device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Mount the device. It detaches with the last unmount, even if the driver is not running.
    Mount,
    /// Publish the device itself. A bind of the device node would not keep it attached, so it stays
    /// until the driver detaches it.
    Block,
}

/// The minor of the attached device to use; `None` to attach one. Two devices over the image would
/// corrupt the filesystem, so there is never a second one. An unusable device is an error and is
/// not replaced. `limit` is that of the driver itself, for a fault.
fn reuse(loops: &[LoopInfo], purpose: Purpose, limit: Option<u64>) -> Result<Option<u32>> {
    match loops {
        [] => Ok(None),
        [one] if one.read_only => refuse(format!(
            "/dev/loop{} holds the volume's image read-only; detach it",
            one.minor
        )),
        [one] if one.tampered_beside(limit).is_some() => refuse(format!(
            "/dev/loop{} is not as it was attached: {}; unpublish and unstage the volume, or detach it",
            one.minor,
            one.tampered_beside(limit).unwrap_or_default()
        )),
        [one] if one.autoclear && purpose == Purpose::Block => refuse(format!(
            "/dev/loop{} is held open by another program and detaches as soon as it is closed",
            one.minor
        )),
        [one] => Ok(Some(one.minor)),
        more => refuse(format!(
            "{} loop devices hold the volume's image at once ({}); detach all but one",
            more.len(),
            loop_names(more)
        )),
    }
}

fn refuse<T>(why: String) -> Result<T> {
    Err(Error::FailedPrecondition(why))
}

/// Returns the volume's loop device, and attaches it if necessary, with the image's size and the
/// volume's settings. `state` is what the kernel shows of the volume. `minor` chooses the minor;
/// `None` takes any. After an error the device stays attached, and the caller must detach it.
pub(super) fn attach(
    node: &Node,
    record: &VolumeRecord,
    image: &File,
    state: &VolumeState,
    purpose: Purpose,
    minor: Option<u32>,
) -> Result<LoopDevice> {
    let kernel = node.pools.kernel();
    let backing = file_id(image)?;
    let label = record.id.to_string();
    let limit = record.own_limit();
    let opened = match open_attached(kernel, &state.holding()?, purpose, limit, backing) {
        // A device that others had open for a moment has detached since the look.
        Err(Error::Kernel(kernel::Error::NotFound { .. })) => {
            let now = loops_holding(kernel, backing, &label)?;
            open_attached(kernel, &now, purpose, limit, backing)?
        }
        opened => opened?,
    };
    let is_new = opened.is_none();
    let device = match opened {
        None => {
            let disk = node.serve_fault_disk(record, image)?;
            kernel.loop_attach(&LoopSpec {
                backing: disk.as_ref().unwrap_or(image),
                label: &label,
                offset: 0,
                read_only: false,
                direct_io: record.settings.direct_io,
                autoclear: purpose == Purpose::Mount,
                minor,
            })?
        }
        Some(mut device) => {
            // A container kept it after the last staging. A search for a filesystem, a check and a
            // growth must see all of it, and the fault, if it lasts, begins again.
            if limit.is_some() && purpose == Purpose::Mount {
                kernel.loop_limit(&device, 0)?;
            }
            if device.direct_io != record.settings.direct_io {
                device.direct_io = kernel.loop_set_direct_io(&device, record.settings.direct_io)?;
            }
            device
        }
    };
    if record.settings.direct_io && !device.direct_io {
        tracing::warn!(
            volume = %record.id,
            device = %device.path().display(),
            "attached with buffered I/O: the file behind it can't do direct I/O"
        );
    }
    kernel.loop_set_read_ahead(&device, record.settings.read_ahead())?;
    // A device that was just attached has the size of its file.
    if !is_new {
        follow_size(node, record, &device, image)?;
    }
    Ok(device)
}

/// Opens the device among these that serves the volume; `None` to attach one.
/// [`kernel::Error::NotFound`] if it has detached.
fn open_attached(
    kernel: &dyn Kernel,
    loops: &[LoopInfo],
    purpose: Purpose,
    limit: Option<u64>,
    backing: FileId,
) -> Result<Option<LoopDevice>> {
    let Some(minor) = reuse(loops, purpose, limit)? else {
        return Ok(None);
    };
    Ok(Some(kernel.loop_open(minor, backing)?))
}

/// Grows a device to the size of the image.
pub(super) fn follow_size(
    node: &Node,
    record: &VolumeRecord,
    device: &LoopDevice,
    image: &File,
) -> Result<()> {
    let kernel = node.pools.kernel();
    if kernel.loop_size(device)? < file::length(image)? {
        node.grow_fault_disk(record)?;
        kernel.loop_grow(device)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::BLOCK_SIZE;

    fn info(minor: u32) -> LoopInfo {
        LoopInfo {
            minor,
            backing: Some(FileId { dev: 1, ino: 2 }),
            block_size: BLOCK_SIZE,
            direct_io: true,
            ..LoopInfo::default()
        }
    }

    fn changed(change: fn(&mut LoopInfo)) -> LoopInfo {
        let mut changed = info(3);
        change(&mut changed);
        changed
    }

    #[test]
    fn one_device_serves_and_a_second_is_never_made() {
        let autoclear = changed(|l| l.autoclear = true);
        let read_only = changed(|l| l.read_only = true);
        let sectors = changed(|l| l.block_size = 512);
        let shifted = changed(|l| l.offset = 4096);
        let cut = changed(|l| l.size_limit = 4096);
        // devices over the image, purpose → the plan, or a word of the error
        let table = [
            (vec![], Purpose::Mount, Ok(None)),
            (vec![], Purpose::Block, Ok(None)),
            (vec![info(3)], Purpose::Mount, Ok(Some(3))),
            (vec![info(3)], Purpose::Block, Ok(Some(3))),
            (vec![autoclear.clone()], Purpose::Mount, Ok(Some(3))),
            (vec![autoclear], Purpose::Block, Err("held open")),
            (vec![read_only.clone()], Purpose::Mount, Err("read-only")),
            (vec![read_only], Purpose::Block, Err("read-only")),
            (vec![sectors], Purpose::Mount, Err("512")),
            (vec![shifted], Purpose::Block, Err("begins at byte 4096")),
            (vec![cut], Purpose::Block, Err("limited to 4096 bytes")),
            (
                vec![info(3), info(5)],
                Purpose::Mount,
                Err("/dev/loop3, /dev/loop5"),
            ),
        ];
        for (loops, purpose, expected) in table {
            match (reuse(&loops, purpose, None), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{loops:?}"),
                (Err(Error::FailedPrecondition(got)), Err(expected)) => {
                    assert!(got.contains(expected), "{got}");
                }
                (got, expected) => panic!("{loops:?} {purpose:?}: {got:?}, not {expected:?}"),
            }
        }
        let faulty = [changed(|l| l.size_limit = 4096)];
        let reused = reuse(&faulty, Purpose::Block, Some(4096)).unwrap();
        assert_eq!(reused, Some(3), "the limit is the driver's own");
    }
}
