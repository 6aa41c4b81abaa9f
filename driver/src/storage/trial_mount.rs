//! Mounts a new filesystem once, before a volume with it exists. mkfs makes filesystems that the
//! kernel can't mount: its options may ask for what the kernel lacks, or for smaller blocks than
//! loop devices have. Only the kernel knows.

use std::fs::File;

use super::{Result, VolumeId};
use crate::kernel::{FsType, Kernel, LoopSpec};

/// Fails with [`kernel::Error::NotMountable`](crate::kernel::Error) if the kernel can't mount the
/// image. The mount and its loop device end with their handles, even if this process is killed.
pub(super) fn try_mount(
    kernel: &dyn Kernel,
    image: &File,
    volume: VolumeId,
    fs: FsType,
) -> Result<()> {
    let device = kernel.loop_attach(&LoopSpec {
        backing: image,
        label: &volume.to_string(),
        offset: 0,
        read_only: false,
        direct_io: true,
        autoclear: true,
        minor: None,
    })?;
    let mounted = kernel.open_filesystem(&device.path(), fs)?;
    // In this order, so that the unmount ends with this call.
    drop(device);
    drop(mounted);
    Ok(())
}
