//! A pool in one image file: it provides reflinks on any filesystem, and a hard limit. The filesystem
//! on its loop device is made and mounted as that of a block device (`pool_device.rs`).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hostloop_terminal::humanize::exact_bytes;

use super::pool_device::Device;
use super::pool_error::{refused, unavailable};
use super::pool_lock::flock;
use super::pool_registry::RegisteredPool;
use crate::kernel::{self, FileId, Kernel, LoopDevice, LoopSpec, MountEntry, file, loop_names};
use crate::storage::layout::{open_dir, open_file};
use crate::storage::{PoolSpec, Result, place};

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

/// Opens the image, or creates it the first time. Attaches it, or finds its loop device. The pool's
/// mount point is `at`.
pub(super) fn attach(
    kernel: &dyn Kernel,
    spec: &PoolSpec,
    entry: &RegisteredPool,
    at: &Path,
    bytes: u64,
) -> Result<Attached> {
    let name = spec.image_name();
    let path = spec.path.join(&name);
    not_lost(kernel, spec, at)?;
    let dir = open_dir(&spec.path)?;
    let (image, new) = open_or_create(spec, entry, &dir, &name)?;
    // A separate file handle: the loop device keeps the other one open, so a lock on that would
    // outlive this process.
    let lock = open_file(dir.as_fd(), &name)?;
    flock(spec, &lock, &path)?;
    let mut notes = Vec::new();
    whole(&image, spec, &path)?;
    let bytes = match resize(kernel, &image, spec, new, bytes, &mut notes) {
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
        notes.push(format!(
            "{}: direct I/O is off, so its data is cached twice",
            path.display()
        ));
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

/// Opens the image, or creates it for a pool that was never made. True if it is new.
fn open_or_create(
    spec: &PoolSpec,
    entry: &RegisteredPool,
    dir: &File,
    name: &str,
) -> Result<(File, bool)> {
    match open_file(dir.as_fd(), name) {
        Ok(image) => Ok((image, false)),
        Err(kernel::Error::NotFound { .. }) if entry.id.is_some() => {
            Err(unavailable(spec, why_missing(spec, entry, name)))
        }
        Err(kernel::Error::NotFound { .. }) => {
            let image = file::create_beneath(dir.as_fd(), Path::new(name))?;
            file::set_no_cow_on_btrfs(image.as_fd())?;
            Ok((image, true))
        }
        Err(e) => Err(e.into()),
    }
}

/// Why the image of a pool that was made is not there.
fn why_missing(spec: &PoolSpec, entry: &RegisteredPool, name: &str) -> String {
    let path = spec.path.join(name);
    let shown = path.display();
    if entry.fs_uuid.is_none() {
        format!(
            "{shown} is not there: this pool was a directory ({}), and the kind of a pool can't \
             change. Leave out image=SIZE, or give the pool in an image another name",
            entry.path.display()
        )
    } else {
        format!("{shown} is not there{}", entry.path_before(spec))
    }
}

/// Fails if the pool is mounted from an image that is not at its path any more. Only its loop
/// device holds that image then, and another file at the path must not take its place.
fn not_lost(kernel: &dyn Kernel, spec: &PoolSpec, at: &Path) -> Result<()> {
    let mounts = kernel.mounts()?;
    let Some(minor) = mounts.at(at).and_then(MountEntry::loop_minor) else {
        return Ok(());
    };
    let device = kernel.loop_info(minor)?;
    let lost = device.and_then(|device| place::lost_image(spec, &device, at.to_owned()));
    lost.map_or(Ok(()), |lost| Err(unavailable(spec, lost.message())))
}

/// Fails if the image is shorter than the XFS in it: it was cut off. With zeros in place of its
/// end, that would look like a whole filesystem.
fn whole(image: &File, spec: &PoolSpec, path: &Path) -> Result<()> {
    let mut start = [0; 16];
    let len = file::length(image)?;
    if image.read_exact_at(&mut start, 0).is_err() {
        return Ok(());
    }
    let bytes = xfs_bytes(&start).unwrap_or_default();
    if len >= bytes {
        return Ok(());
    }
    Err(unavailable(
        spec,
        format!(
            "its image {} has {}, and the filesystem in it {}: it was cut off. Nothing was changed. \
             Bring the whole image back from a backup. To read what is left, copy the image, lengthen \
             the copy (truncate -s {bytes} COPY) and mount that read-only (mount -o ro,norecovery \
             COPY DIR)",
            path.display(),
            exact_bytes(len),
            exact_bytes(bytes)
        ),
    ))
}

/// The size of an XFS in bytes, by the first bytes of its superblock. `None` without one.
fn xfs_bytes(start: &[u8; 16]) -> Option<u64> {
    let (magic, rest) = start.split_first_chunk::<4>()?;
    let (block, rest) = rest.split_first_chunk::<4>()?;
    let blocks = rest.first_chunk::<8>()?;
    let bytes = u64::from_be_bytes(*blocks).saturating_mul(u32::from_be_bytes(*block).into());
    (magic == b"XFSB").then_some(bytes)
}

/// Grows the image to its configured size, and returns its length. It never shrinks the image,
/// because that would destroy the filesystem in it. A pool that exists already opens even without
/// space to preallocate its image.
fn resize(
    kernel: &dyn Kernel,
    image: &File,
    spec: &PoolSpec,
    new: bool,
    bytes: u64,
    notes: &mut Vec<String>,
) -> Result<u64> {
    let len = file::length(image)?;
    if len > bytes {
        notes.push(format!(
            "its image keeps its {}, and {} are configured: the driver never shrinks an image",
            exact_bytes(len),
            exact_bytes(bytes)
        ));
    }
    let bytes = bytes.max(len);
    let lacks = bytes.saturating_sub(file::allocated_bytes(image)?);
    let free = kernel.usage_of(image.as_fd())?.available_bytes;
    if spec.preallocate && !new && lacks > free {
        notes.push(format!(
            "its image can't be preallocated: it lacks {} on the disk below, which has {} free. Free \
             space there, then restart the driver",
            exact_bytes(lacks),
            exact_bytes(free)
        ));
        if len < bytes {
            file::set_len(image, bytes)?;
        }
    } else if spec.preallocate && lacks > 0 {
        kernel.allocate(image, 0..bytes)?;
    } else if len < bytes {
        file::set_len(image, bytes)?;
    }
    Ok(bytes)
}

/// Returns the only loop device of the image. A second device would mount a second filesystem over
/// the same bytes, so a device of an earlier process is found by its backing file.
fn on_loop(kernel: &dyn Kernel, spec: &PoolSpec, image: &File) -> Result<LoopDevice> {
    let id: FileId = kernel::file_id(image)?;
    let attached = kernel::loops_holding(kernel, id, &spec.image_name())?;
    let device = match attached.as_slice() {
        [] => kernel.loop_attach(&LoopSpec {
            backing: image,
            label: &format!("pool {}", spec.name),
            offset: 0,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_an_xfs_is_in_its_superblock() {
        let mut start = *b"XFSB\0\0\x10\0\0\0\0\0\0\x01\x2c\0";
        assert_eq!(xfs_bytes(&start), Some(300 << 20));
        start[0] = 0;
        assert_eq!(xfs_bytes(&start), None);
    }
}
