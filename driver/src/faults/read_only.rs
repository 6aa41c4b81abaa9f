//! `readonly`: an ext4 meets an error and becomes read-only, until it is mounted again.

use hostloop_controllers::api::claim_fault::FaultKind;

use super::target::Target;
use super::{FaultError, Obstacle};
use crate::kernel::{FsType, MountEntry};

pub(super) fn obstacle(target: &Target<'_>, _kind: FaultKind) -> Option<Obstacle> {
    match target.fs() {
        Some(FsType::Ext4) => None,
        Some(FsType::Xfs) => Some(Obstacle::XfsShutsDown),
        Some(FsType::Btrfs) => Some(Obstacle::BtrfsNeedsWrite),
        None => Some(Obstacle::NoFilesystem),
    }
}

pub(super) fn turn(target: &Target<'_>) -> Result<(), FaultError> {
    let (kernel, mount) = (target.kernel(), target.mount());
    if mount.is_some_and(MountEntry::fs_read_only) {
        return Ok(());
    }
    let minor = mount.and_then(MountEntry::loop_minor);
    let minor = minor.ok_or(Obstacle::NoFilesystem)?;
    // While it is open, no other filesystem can get the device.
    let root = target.root()?;
    kernel.trigger_error(minor)?;
    drop(root);
    kernel.forget_mounts();
    let now = kernel.mounts()?;
    if now.of_loop(minor).any(MountEntry::fs_read_only) {
        return Ok(());
    }
    Err(Obstacle::ErrorsIgnored.into())
}
