//! `readonly`: an ext4 meets an error and becomes read-only, until it is mounted again.

use hostloop_controllers::api::claim_fault::FaultKind;

use super::target::Target;
use super::{FaultError, Obstacle};
use crate::kernel::{FsType, MountEntry};

pub(super) fn obstacle(target: &Target<'_>, _kind: FaultKind) -> Option<Obstacle> {
    match target.fs() {
        Some(FsType::Ext4) => ignores_errors(target).then_some(Obstacle::ErrorsIgnored),
        Some(FsType::Xfs) => Some(Obstacle::XfsShutsDown),
        Some(FsType::Btrfs) => Some(Obstacle::BtrfsNeedsWrite),
        None => Some(Obstacle::NoFilesystem),
    }
}

/// True if the last `errors=` option of the class is to go on. Then an error would stay in the
/// superblock, and have no other effect.
fn ignores_errors(target: &Target<'_>) -> bool {
    let stage = target.record.stage.as_deref().into_iter();
    let flags = stage.flat_map(|stage| stage.capability.access.flags());
    let mut options = flags.flat_map(|flag| flag.split(','));
    let last = options.rfind(|option| option.starts_with("errors="));
    last == Some("errors=continue")
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

#[cfg(test)]
mod tests {
    use hostloop_controllers::api::claim_fault::ClaimFault;
    use hostloop_controllers::claim_faults::FaultState;
    use hostloop_fake_kernel::Model;

    use crate::faults::reconcile;
    use crate::testkit::{Rig, ext4, mount, with_flags};

    #[test]
    fn a_filesystem_that_goes_on_after_errors_gets_none() {
        let rig = Rig::<Model>::new();
        let flags = ["errors=remount-ro", "noatime,errors=continue"];
        let id = rig.staged(ext4(), "a", &with_flags(mount("ext4"), &flags));
        rig.kernel.take_effects();
        let requested = ClaimFault::parse("readonly").unwrap();
        let refused = reconcile(&rig.node.pools, &id.to_string(), Some(&requested)).unwrap();
        assert_eq!(refused.state, FaultState::Refused);
        let message = refused.message;
        assert!(message.contains("errors=continue"), "{message}");
        assert!(rig.kernel.take_effects().is_empty());
    }
}
