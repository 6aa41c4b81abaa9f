//! Sets the group of a volume's files, if the orchestrator leaves that to the driver
//! (`--volume-mount-group`).

use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::Result;
use crate::kernel;
use crate::kernel::failpoint::effect;

/// The group may read, write and enter, and new files inherit the group.
const GROUP_BITS: u32 = 0o2070;

/// Changes the group of a mounted volume's root. Existing files keep theirs: walking through them
/// would take too long and change what their owners chose.
pub(super) fn chown_root(root: &Path, gid: u32) -> Result<()> {
    let dir = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(root)
        .map_err(|e| kernel::Error::io("open", root, e))?;
    let meta = dir
        .metadata()
        .map_err(|e| kernel::Error::io("fstat", root, e))?;
    if meta.gid() == gid && meta.mode() & GROUP_BITS == GROUP_BITS {
        return Ok(());
    }
    effect("mount.group")
        .and_then(|()| std::os::unix::fs::fchown(&dir, None, Some(gid)))
        .map_err(|e| kernel::Error::io("chgrp", root, e))?;
    // Set the mode after chown, which clears the setgid bit.
    let mode = std::fs::Permissions::from_mode((meta.mode() & 0o7777) | GROUP_BITS);
    dir.set_permissions(mode)
        .map_err(|e| kernel::Error::io("chmod", root, e))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_given_to_the_group_once_and_for_all() {
        let dir = tempfile::tempdir().unwrap();
        let mode = || dir.path().metadata().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        chown_root(dir.path(), 4711).unwrap();
        assert_eq!((mode().gid(), mode().mode() & 0o7777), (4711, 0o2771));
        let before = mode().ctime_nsec();
        chown_root(dir.path(), 4711).unwrap();
        assert_eq!(mode().ctime_nsec(), before, "nothing is changed again");
        assert_eq!(mode().uid(), std::fs::metadata("/proc/self").unwrap().uid());
    }
}
