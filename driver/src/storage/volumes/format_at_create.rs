//! Makes the filesystem of a new volume, if [`NewVolume::format`] says so. No user and no loop
//! device has the image yet. NodeStageVolume formats what this leaves without a filesystem
//! (`node/format_at_stage.rs`).

use std::fs::File;
use std::path::Path;

use crate::kernel::{FsType, Kernel, MkfsSpec};
use crate::storage::{NewVolume, Result, VolumeId, trial_mount};

/// Makes the filesystem in the image of a new volume; `path` is the image's, for messages. Mounts it
/// once if its class has options for mkfs: the kernel may lack what they ask for.
pub(super) fn make(
    kernel: &dyn Kernel,
    image: &File,
    path: &Path,
    new: &NewVolume,
    id: VolumeId,
    fs: FsType,
) -> Result<()> {
    kernel.mkfs(&MkfsSpec {
        device: path,
        image: Some(image),
        fs,
        options: &new.mkfs_options,
        discard: false,
        uuid: None,
        force: false,
    })?;
    if new.mkfs_options.is_empty() {
        return Ok(());
    }
    trial_mount::try_mount(kernel, image, id, fs)
}
