//! Finds a mounted filesystem that is smaller than its device: its growth failed, or needs what
//! this driver or this filesystem lacks.

use hostloop_terminal::humanize::exact_bytes;

use crate::csi::expansion::below_minimum;
use crate::diagnose::VolumeState;
use crate::kernel::{Ext4Growth, FsType, ext4_growth, loop_path};
use crate::storage::{Pools, VolumeRecord};

/// The sizes of a filesystem that could be larger, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    now: u64,
    device: u64,
}

/// Describes how a volume's filesystem is smaller than its device, and what to do. A failed query
/// does not count: the mount may disappear meanwhile.
pub(super) fn smaller(pools: &Pools, state: &VolumeState, record: &VolumeRecord) -> Option<String> {
    let mount = state.staged_mount(record.stage.as_ref()?)?;
    let fs = FsType::parse(&mount.fs_type)?;
    let device = state.own().find(|l| Some(l.minor) == mount.loop_minor())?;
    // Asked between the device's size and the filesystem's: a growth that the former shows has
    // ended, or is under way.
    if pools.growths().is_under_way(record.id) {
        return None;
    }
    let kernel = pools.kernel();
    let path = loop_path(device.minor);
    let now = kernel.fs_size(&mount.mount_point, &path, fs).ok()?;
    let sizes = Sizes {
        now,
        device: device.size_bytes,
    };
    if !is_smaller(fs, sizes) {
        return None;
    }
    let growth = match fs {
        FsType::Ext4 => Some(ext4_growth(kernel, &path, sizes.device).ok()??),
        FsType::Xfs | FsType::Btrfs => None,
    };
    explain(fs, sizes, growth, pools.growths().failure(record.id))
}

/// True if the filesystem could be larger. XFS leaves out a last group of less than 64 blocks.
fn is_smaller(fs: FsType, sizes: Sizes) -> bool {
    const LARGEST_XFS_BLOCK: u64 = 64 << 10;
    let left_out = match fs {
        FsType::Xfs => 64 * LARGEST_XFS_BLOCK,
        FsType::Ext4 | FsType::Btrfs => 0,
    };
    sizes.now.saturating_add(left_out) < sizes.device
}

fn explain(
    fs: FsType,
    sizes: Sizes,
    growth: Option<Ext4Growth>,
    failure: Option<String>,
) -> Option<String> {
    let why = match (growth, failure) {
        (Some(Ext4Growth::Done), _) => return None,
        (Some(Ext4Growth::Not(why)), _) => why.to_string(),
        (_, Some(failure)) => format!("its growth failed: {failure}"),
        (Some(Ext4Growth::Unmounted), None) => {
            "it grows when the volume is staged next: end the pods that use it and start them again"
                .to_owned()
        }
        (Some(Ext4Growth::Mounted) | None, None) => {
            below_minimum(fs, sizes.device).unwrap_or_else(|| {
                "its growth was interrupted: end the pods that use it and start them again"
                    .to_owned()
            })
        }
    };
    let sizes = shown_sizes(sizes);
    Some(format!("its {fs} has {sizes}: {why}"))
}

fn shown_sizes(Sizes { now, device }: Sizes) -> String {
    let (now, device) = (exact_bytes(now), exact_bytes(device));
    format!("{now} of the volume's {device}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::NoGrowth;

    #[test]
    fn a_filesystem_that_could_be_larger_is_explained() {
        use FsType::{Btrfs, Ext4, Xfs};
        const MI: u64 = 1 << 20;
        const GI: u64 = 1 << 30;
        let not = Ext4Growth::Not(NoGrowth::NotPermitted { most: 8 * GI });
        let failed = || Some("resize2fs: no".to_owned());
        // filesystem, its size, the device's, its growth, its last failure → what it says
        let table = [
            (Ext4, 8 * MI, 8 * MI, Some(Ext4Growth::Done), None, None),
            (
                Ext4,
                128 * MI,
                128 * MI + 4096,
                Some(Ext4Growth::Done),
                None,
                None,
            ),
            (
                Ext4,
                8 * MI,
                20 * GI,
                Some(not),
                failed(),
                Some("CAP_SYS_RESOURCE"),
            ),
            (
                Ext4,
                8 * MI,
                GI,
                Some(Ext4Growth::Unmounted),
                None,
                Some("staged next"),
            ),
            (
                Ext4,
                8 * MI,
                GI,
                Some(Ext4Growth::Unmounted),
                failed(),
                Some("resize2fs: no"),
            ),
            (
                Ext4,
                8 * MI,
                GI,
                Some(Ext4Growth::Mounted),
                None,
                Some("interrupted"),
            ),
            (Xfs, GI, GI + MI, None, None, None),
            (Xfs, GI, 2 * GI, None, failed(), Some("resize2fs: no")),
            (Xfs, GI, 2 * GI, None, None, Some("interrupted")),
            (
                Btrfs,
                128 * MI,
                192 * MI,
                None,
                None,
                Some("smallest size to which btrfs grows is 256 MiB (268435456 bytes)"),
            ),
            (Btrfs, 128 * MI, 300 * MI, None, None, Some("interrupted")),
            (Btrfs, 300 * MI, 300 * MI, None, None, None),
        ];
        for (fs, now, device, growth, failure, says) in table {
            let sizes = Sizes { now, device };
            let said = is_smaller(fs, sizes)
                .then(|| explain(fs, sizes, growth, failure))
                .flatten();
            let what = format!("{fs} {sizes:?}: {said:?}");
            match (said, says) {
                (Some(said), Some(says)) => {
                    let sizes = shown_sizes(sizes);
                    assert!(said.contains(says) && said.contains(&sizes), "{what}");
                }
                (said, says) => assert_eq!(said.is_some(), says.is_some(), "{what}"),
            }
        }
    }
}
