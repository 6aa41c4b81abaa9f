//! A pool in one image file: it provides reflinks on any filesystem, and a hard limit.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::OFlags;

use super::pool_device::Device;
use super::pool_directory::{flock, refused, unavailable};
use super::registry::Entry;
use crate::kernel::{self, FileId, Kernel, LoopDevice, LoopSpec, file, loop_names};
use crate::storage::directory::open_dir;
use crate::storage::{PoolSpec, Result, directory};

/// A pool image attached to its loop device.
pub(super) struct Attached {
    pub(super) device: Device,
    /// Keeps the device attached until its filesystem is mounted. From then on the mount keeps it,
    /// even after this process ends; autoclear detaches it after its last use.
    pub(super) hold: LoopDevice,
    /// The image's length in bytes.
    pub(super) bytes: u64,
    /// The lock on the image.
    pub(super) lock: File,
    pub(super) notes: Vec<String>,
}

/// Opens the image, or creates it the first time. Attaches it, or finds its loop device.
pub(super) fn attach(
    kernel: &dyn Kernel,
    spec: &PoolSpec,
    entry: &Entry,
    bytes: u64,
) -> Result<Attached> {
    let name = spec.image_name();
    let path = spec.path.join(&name);
    let dir = open_dir(&spec.path)?;
    let open = || file::open_beneath(dir.as_fd(), Path::new(&name), OFlags::RDWR);
    let (image, new) = match open() {
        Ok(image) => (image, false),
        Err(kernel::Error::NotFound { .. }) if entry.id.is_some() => {
            let why = format!("{} is not there", path.display());
            return Err(unavailable(spec, why));
        }
        Err(kernel::Error::NotFound { .. }) => {
            let image = file::create_beneath(dir.as_fd(), Path::new(&name))?;
            directory::set_no_cow_on_btrfs(image.as_fd())?;
            (image, true)
        }
        Err(e) => return Err(e.into()),
    };
    // A separate file handle: the loop device keeps the other one open, so a lock on that would
    // outlive this process.
    let lock = open()?;
    flock(spec, &lock, &path)?;
    let mut notes = Vec::new();
    let bytes = match resize(&image, spec, bytes, &mut notes) {
        Ok(bytes) => bytes,
        Err(e) => {
            if new {
                // A partial image of a pool that was never made would only use up space.
                file::remove_entry(dir.as_fd(), &name)?;
            }
            return Err(e);
        }
    };
    file::sync(&image, &path)?;
    file::sync(&dir, &spec.path)?;
    let hold = on_loop(kernel, spec, &image)?;
    if !hold.direct_io {
        notes.push(format!("{}: direct I/O is off, so its data is cached twice", path.display()));
    }
    Ok(Attached {
        device: Device {
            path: kernel::loop_path(hold.minor),
            number: (kernel::LOOP_MAJOR, hold.minor),
            discard: !spec.preallocate,
        },
        hold,
        bytes,
        lock,
        notes,
    })
}

/// Grows the image to its configured size, and returns its length. It never shrinks the image,
/// because that would destroy the filesystem in it.
fn resize(image: &File, spec: &PoolSpec, bytes: u64, notes: &mut Vec<String>) -> Result<u64> {
    let len = file::length(image)?;
    if len > bytes {
        notes.push(format!("its image keeps its {len} bytes ({bytes} are configured): the driver never shrinks an image"));
    }
    let bytes = bytes.max(len);
    if spec.preallocate && file::allocated_bytes(image)? < bytes {
        file::allocate(image, bytes)?;
    } else if len < bytes {
        file::set_len(image, bytes)?;
    }
    Ok(bytes)
}

/// Returns the only loop device of the image. A second device would mount a second filesystem over
/// the same bytes, so a device of an earlier process is found by its backing file.
fn on_loop(kernel: &dyn Kernel, spec: &PoolSpec, image: &File) -> Result<LoopDevice> {
    let id: FileId = kernel::file_id(image)?;
    let attached = kernel.loops_holding(id, &spec.image_name())?;
    let device = match attached.as_slice() {
        [] => kernel.loop_attach(&LoopSpec {
            backing: image,
            label: &format!("pool {}", spec.name),
            read_only: false,
            direct_io: true,
            autoclear: true,
            minor: None,
        })?,
        [one] if one.read_only => {
            let why = format!("its image is attached read-only to /dev/loop{}", one.minor);
            return Err(refused(spec, why));
        }
        [one] => kernel.loop_open(one.minor, id)?,
        many => {
            let devices = loop_names(many);
            let why = format!("its image is on several loop devices at once: {devices}");
            return Err(refused(spec, why));
        }
    };
    kernel.loop_grow(&device)?;
    Ok(device)
}
