//! Compares what the owner of a volume says of its device with the kernel. Pure.

use crate::kernel::LoopInfo;
use crate::reach::context::PublishContext;
use crate::storage::VolumeId;

/// How a device differs from what the owner of the volume says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Mismatch {
    #[error("the machine has started again since it was attached")]
    Boot,
    #[error("/dev/loop{0} is not attached any more")]
    Detached(u32),
    #[error("/dev/loop{0} holds another file now")]
    Image(u32),
    #[error("/dev/loop{0} was detached and attached again")]
    Sequence(u32),
    #[error("/dev/loop{0} holds a file of another directory")]
    Directory(u32),
    #[error("/dev/loop{0} is read-only")]
    ReadOnly(u32),
    #[error("/dev/loop{minor} was changed by one of its users: {why}")]
    Changed { minor: u32, why: String },
}

/// Compares the context with the device of its minor, at best while that is open: then its number
/// can't go to another file. `boot` is the running boot.
pub(super) fn compare(
    context: &PublishContext,
    boot: &str,
    device: Option<&LoopInfo>,
    diskseq: Option<u64>,
    volume: VolumeId,
) -> Result<(), Mismatch> {
    let minor = context.minor;
    if context.boot != boot {
        return Err(Mismatch::Boot);
    }
    let device = device.ok_or(Mismatch::Detached(minor))?;
    if device.backing != Some(context.image) || device.backing_rdev != 0 {
        return Err(Mismatch::Image(minor));
    }
    if diskseq != Some(context.diskseq) {
        return Err(Mismatch::Sequence(minor));
    }
    // The name of the directory is the volume's ID, in whichever mount namespace.
    if device.directory() != Some(volume.to_string().as_str()) {
        return Err(Mismatch::Directory(minor));
    }
    if device.read_only {
        return Err(Mismatch::ReadOnly(minor));
    }
    match device.tampered() {
        Some(why) => Err(Mismatch::Changed { minor, why }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{BLOCK_SIZE, FileId, FsType};
    use crate::record::Provisioning;
    use crate::storage::PoolId;

    const IMAGE: FileId = FileId { dev: 66306, ino: 5 };

    fn said() -> PublishContext {
        PublishContext {
            boot: "boot".to_owned(),
            minor: 7,
            diskseq: 41,
            image: IMAGE,
            fs: Some(FsType::Xfs),
            provisioning: Provisioning::Thin,
            discard: true,
            owner: "n1".to_owned(),
            many_nodes: false,
        }
    }

    fn attached(volume: VolumeId) -> LoopInfo {
        LoopInfo {
            minor: 7,
            backing: Some(IMAGE),
            backing_path: format!("/volumes/{volume}/image"),
            block_size: BLOCK_SIZE,
            autoclear: true,
            direct_io: true,
            ..LoopInfo::default()
        }
    }

    #[test]
    fn each_difference_counts() {
        let [volume, other] = [(); 2].map(|()| VolumeId::generate(PoolId::generate()));
        let changed = |change: fn(&mut LoopInfo)| {
            let mut device = attached(volume);
            change(&mut device);
            Some(device)
        };
        let at = |path: String| {
            Some(LoopInfo {
                backing_path: path,
                ..attached(volume)
            })
        };
        let changed_by_user = |why: &str| {
            Err(Mismatch::Changed {
                minor: 7,
                why: why.to_owned(),
            })
        };
        // boot, device, diskseq → the difference
        let table = [
            ("boot", Some(attached(volume)), Some(41), Ok(())),
            (
                "boot",
                at(format!("/var/local/pool/volumes/{volume}/image (deleted)")),
                Some(41),
                Ok(()),
            ),
            (
                "later",
                Some(attached(volume)),
                Some(41),
                Err(Mismatch::Boot),
            ),
            ("later", None, None, Err(Mismatch::Boot)),
            ("boot", None, None, Err(Mismatch::Detached(7))),
            (
                "boot",
                changed(|l| l.backing = Some(FileId { ino: 6, ..IMAGE })),
                Some(41),
                Err(Mismatch::Image(7)),
            ),
            (
                "boot",
                changed(|l| l.backing = Some(FileId { dev: 1, ..IMAGE })),
                Some(41),
                Err(Mismatch::Image(7)),
            ),
            (
                "boot",
                changed(|l| l.backing = None),
                Some(41),
                Err(Mismatch::Image(7)),
            ),
            (
                "boot",
                changed(|l| l.backing_rdev = 0x701),
                Some(41),
                Err(Mismatch::Image(7)),
            ),
            (
                "boot",
                Some(attached(volume)),
                Some(42),
                Err(Mismatch::Sequence(7)),
            ),
            (
                "boot",
                Some(attached(volume)),
                None,
                Err(Mismatch::Sequence(7)),
            ),
            (
                "boot",
                at(format!("/volumes/{other}/image")),
                Some(41),
                Err(Mismatch::Directory(7)),
            ),
            (
                "boot",
                at(String::new()),
                Some(41),
                Err(Mismatch::Directory(7)),
            ),
            (
                "boot",
                changed(|l| l.read_only = true),
                Some(41),
                Err(Mismatch::ReadOnly(7)),
            ),
            (
                "boot",
                changed(|l| l.offset = 4096),
                Some(41),
                changed_by_user("it begins at byte 4096 of its file"),
            ),
            (
                "boot",
                changed(|l| l.size_limit = 4096),
                Some(41),
                changed_by_user("it is limited to 4096 bytes of its file"),
            ),
            (
                "boot",
                changed(|l| l.block_size = 512),
                Some(41),
                changed_by_user("its blocks are of 512 bytes, not 4096"),
            ),
        ];
        for (boot, device, diskseq, expected) in table {
            let found = compare(&said(), boot, device.as_ref(), diskseq, volume);
            assert_eq!(found, expected, "{boot} {diskseq:?} {device:?}");
        }
    }
}
