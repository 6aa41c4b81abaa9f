//! Mounts that earlier versions made to thaw a filesystem, at `<statedir>/thaw/<volume>`. A process
//! that died in between left one, and a volume that is mounted anywhere can't be staged elsewhere
//! or deleted. This version makes none.

use std::path::{Path, PathBuf};

use super::{Result, VolumeId};
use crate::kernel::{self, FileId, Kernel};

fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("thaw")
}

pub(super) fn directory_of(state_dir: &Path, volume: VolumeId) -> PathBuf {
    directory(state_dir).join(volume.to_string())
}

/// The volumes that may have such a mount.
pub(super) fn volumes(state_dir: &Path) -> Vec<VolumeId> {
    let entries = std::fs::read_dir(directory(state_dir))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Unmounts a volume there, if its own loop device is mounted, and removes the directory. Leaves
/// any other mount.
pub(super) fn unmount(
    kernel: &dyn Kernel,
    state_dir: &Path,
    volume: VolumeId,
    image: FileId,
) -> Result<()> {
    // The mount table has no symlinks.
    let Ok(at) = directory_of(state_dir, volume).canonicalize() else {
        return Ok(());
    };
    while let Some(mount) = kernel::topmost_mount(kernel, &at)? {
        let own = kernel::loops_holding(kernel, image, &volume.to_string())?;
        if !own.iter().any(|device| mount.is_on_loop(device.minor)) {
            return Ok(());
        }
        tracing::info!(%volume, path = %at.display(), "unmounting what an interrupted thaw left");
        kernel.unmount_exactly(&mount)?;
    }
    // It is not empty if something else was put there.
    let _ = std::fs::remove_dir(&at);
    Ok(())
}
