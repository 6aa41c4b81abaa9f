//! `powercut`: the filesystem loses what it has not written, and all I/O fails until it is mounted
//! again, which replays its journal. A btrfs can't be shut down, so its device is cut off instead.

use hostloop_controllers::api::claim_fault::FaultKind;

use super::size_limit::{self, GONE};
use super::target::Target;
use super::{FaultError, Obstacle};
use crate::kernel::FsType;

pub(super) fn obstacle(target: &Target<'_>, _kind: FaultKind) -> Option<Obstacle> {
    target.fs().is_none().then_some(Obstacle::NoFilesystem)
}

pub(super) fn limit(target: &Target<'_>, _kind: FaultKind) -> Option<u64> {
    (target.fs() == Some(FsType::Btrfs)).then_some(GONE)
}

pub(super) fn cut(target: &Target<'_>) -> Result<(), FaultError> {
    match target.fs() {
        // The process ended after the cut. An XFS that has shut down can't be opened.
        Some(FsType::Ext4 | FsType::Xfs) if target.has_shut_down() => Ok(()),
        Some(FsType::Btrfs) => size_limit::set(target),
        Some(FsType::Ext4 | FsType::Xfs) => {
            target.kernel().shut_down(&target.root()?)?;
            target.kernel().forget_mounts();
            Ok(())
        }
        None => Err(Obstacle::NoFilesystem.into()),
    }
}
