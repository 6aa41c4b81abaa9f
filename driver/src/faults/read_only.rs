//! `readonly`: an ext4 meets an error and becomes read-only, until it is mounted again.

use hostloop_controllers::api::claim_fault::FaultKind;

use super::FaultError;
use super::target::{NO_FILESYSTEM, Target};
use crate::kernel::{FsType, MountEntry};

pub(super) fn obstacle(target: &Target<'_>, _kind: FaultKind) -> Option<String> {
    match target.fs() {
        Some(FsType::Ext4) => None,
        Some(FsType::Xfs) => {
            Some("an XFS shuts down after an error, and does not become read-only".to_owned())
        }
        Some(FsType::Btrfs) => {
            Some("a btrfs becomes read-only only after a failed write: see gone".to_owned())
        }
        None => Some(NO_FILESYSTEM.to_owned()),
    }
}

pub(super) fn turn(target: &Target<'_>) -> Result<(), FaultError> {
    let (kernel, mount) = (target.kernel(), target.mount());
    if mount.is_some_and(MountEntry::fs_read_only) {
        return Ok(());
    }
    let minor = mount.and_then(MountEntry::loop_minor);
    let minor = minor.ok_or_else(|| FaultError::Impossible(NO_FILESYSTEM.to_owned()))?;
    // While it is open, no other filesystem can get the device.
    let root = target.root()?;
    kernel.trigger_error(minor)?;
    drop(root);
    kernel.forget_mounts();
    let now = kernel.mounts()?;
    if now.of_loop(minor).any(MountEntry::fs_read_only) {
        return Ok(());
    }
    let why = "its class mounts it with errors=continue, so an error has no effect";
    Err(FaultError::Impossible(why.to_owned()))
}
