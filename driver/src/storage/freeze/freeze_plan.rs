//! The steps to freeze a volume, derived from the tables of loop devices and mounts. Pure.

use super::FreezeTarget;
use crate::kernel::{FileId, LoopInfo, MountEntry, MountTable};
use crate::storage::{Error, Result, VolumeId};

/// A step for one attached loop device. A volume without a loop device needs no step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FreezeStep {
    /// Freeze the filesystem on the device.
    Freeze(MountedVolume),
    /// Write back dirty data of a raw block device, or of a device with no filesystem mounted here.
    Flush {
        /// The volume's image.
        image: FileId,
        /// The loop device's minor.
        minor: u32,
        /// The volume is staged as a raw block device.
        raw: bool,
    },
}

/// A mounted filesystem of a volume.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MountedVolume {
    pub(super) volume: VolumeId,
    /// The volume's image and the loop device's minor.
    pub(super) device: (FileId, u32),
    /// The filesystem's mounts, through which it can be opened.
    pub(super) mounts: Vec<MountEntry>,
    /// Thaw first: an earlier freeze by the driver may still be in force.
    pub(super) thaw_first: bool,
}

/// Returns the steps for one of `group` volumes; `loops` are the loop devices of its image.
pub(super) fn steps(
    target: &FreezeTarget,
    group: usize,
    loops: &[LoopInfo],
    mounts: &MountTable,
) -> Result<Vec<FreezeStep>> {
    // A read-only loop device over the device node (a read-only raw block publication) has another
    // backing file, so it is not in `loops`.
    if target.raw_staged && group > 1 && !loops.is_empty() {
        return Err(Error::CannotFreeze(format!(
            "volume {} is in use as a raw block device, which can't be frozen, so the group would \
             not be of one point in time: unstage it, or snapshot it by itself",
            target.volume
        )));
    }
    Ok(loops
        .iter()
        .map(|device| step(target, device, mounts))
        .collect())
}

fn step(target: &FreezeTarget, device: &LoopInfo, mounts: &MountTable) -> FreezeStep {
    let (image, minor) = (target.image, device.minor);
    let mounts: Vec<MountEntry> = mounts.of_loop(minor).cloned().collect();
    if target.raw_staged || mounts.is_empty() {
        let raw = target.raw_staged;
        return FreezeStep::Flush { image, minor, raw };
    }
    FreezeStep::Freeze(MountedVolume {
        volume: target.volume,
        device: (image, minor),
        mounts,
        thaw_first: target.freeze_intent,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::storage::PoolId;

    const IMAGE: FileId = FileId { dev: 1, ino: 2 };

    fn device(minor: u32) -> LoopInfo {
        LoopInfo {
            minor,
            backing: Some(IMAGE),
            ..LoopInfo::default()
        }
    }

    fn mounts(text: &str) -> MountTable {
        MountTable::parse(text.as_bytes()).unwrap()
    }

    const EXT4: &str = "\
        30 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        31 30 7:3 / /stage rw - ext4 /dev/loop3 rw\n\
        32 30 7:3 / /pod rw - ext4 /dev/loop3 rw\n\
        33 30 7:4 / /other rw - ext4 /dev/loop4 rw\n\
        34 30 0:5 /loop3 /block rw - devtmpfs udev rw\n";

    /// Renders steps as words.
    fn words(steps: Result<Vec<FreezeStep>>) -> Vec<String> {
        let word = |step: FreezeStep| match step {
            FreezeStep::Freeze(m) => {
                assert_eq!(m.device.0, IMAGE);
                let ids: Vec<u64> = m.mounts.iter().map(|m| m.id).collect();
                let first = if m.thaw_first { "thaw, " } else { "" };
                format!("{first}freeze {} by {ids:?}", m.device.1)
            }
            FreezeStep::Flush { minor, .. } => format!("flush {minor}"),
        };
        match steps {
            Ok(steps) => steps.into_iter().map(word).collect(),
            Err(Error::CannotFreeze(_)) => vec!["refuse".to_owned()],
            Err(e) => panic!("{e}"),
        }
    }

    #[rstest]
    #[case::at_rest(false, false, 1, &[], &[])]
    #[case::mounted(false, false, 1, &[3], &["freeze 3 by [31, 32]"])]
    #[case::mounted_in_a_group(false, false, 4, &[3], &["freeze 3 by [31, 32]"])]
    #[case::left_frozen(false, true, 1, &[3], &["thaw, freeze 3 by [31, 32]"])]
    #[case::attached_only(false, false, 1, &[9], &["flush 9"])]
    #[case::attached_only_in_a_group(false, false, 2, &[9], &["flush 9"])]
    #[case::raw(true, false, 1, &[9], &["flush 9"])]
    #[case::raw_in_a_group(true, false, 2, &[9], &["refuse"])]
    #[case::raw_at_rest_in_a_group(true, false, 2, &[], &[])]
    #[case::raw_but_mounted(true, false, 1, &[3], &["flush 3"])]
    fn what_a_volume_needs(
        #[case] raw_staged: bool,
        #[case] freeze_intent: bool,
        #[case] group: usize,
        #[case] minors: &[u32],
        #[case] expected: &[&str],
    ) {
        let target = FreezeTarget {
            volume: VolumeId::generate(PoolId::generate()),
            image: IMAGE,
            raw_staged,
            freeze_intent,
        };
        let loops: Vec<LoopInfo> = minors.iter().map(|m| device(*m)).collect();
        assert_eq!(
            words(steps(&target, group, &loops, &mounts(EXT4))),
            expected
        );
    }
}
