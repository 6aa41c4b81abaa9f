//! Rows of steps with copies that few users make: of a volume that has grown, of a block device as a
//! filesystem, and snapshots that promise all that a namespace may have. They have draws of their own,
//! so that those of other steps stay.

use crate::dice::Dice;
use crate::history::expected::Expected;
use crate::history::rows::groups_and_adoptions::plan_adoption;
use crate::history::rows::{AT_ONCE, LATER, MODEST, SOON, after};
use crate::history::{Action, Source, Step};

/// Growth for which most pools have room, in bytes.
const LITTLE: [u64; 3] = [1 << 20, 5_000_001, 16 << 20];

/// As large as all that the snapshots of a namespace may promise.
const LARGE: &str = "32Mi";

impl Expected {
    /// Steps in a row, seldom. Their objects count as expected from now on.
    pub(super) fn begin_row_of_unusual_copies(&mut self, dice: &mut Dice) -> Option<Vec<Step>> {
        /// At so many steps in a thousand, a row begins: each is in about every third history of 60
        /// steps.
        const CHANCE: u64 = 27;
        if dice.below(1000) >= CHANCE {
            return None;
        }
        Some(match dice.below(3) {
            0 => self.grown_source(dice),
            1 => self.large_snapshots(dice),
            _ => self.mounted_block_device(dice),
        })
    }

    /// Grows a volume, takes a snapshot of it, and requests for the copy what the volume had at first.
    fn grown_source(&mut self, dice: &mut Dice) -> Vec<Step> {
        let class = *dice.pick(&["ext4-now", "btrfs-now"]);
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim(class, size, None, dice);
        let grow = Action::Grow {
            name: claim.clone(),
            by: *dice.pick(&LITTLE),
        };
        let (snapshot, take) = self.plan_snapshot(&claim, "deleted", dice);
        let source = Some(Source::Snapshot(snapshot));
        let (_, restore) = self.plan_claim(class, size, source, dice);
        vec![
            after(AT_ONCE, make, dice),
            after(SOON, grow, dice),
            after(LATER, take, dice),
            after(SOON, restore, dice),
        ]
    }

    /// Takes a snapshot of a block device, takes its data over by hand, where nothing says any more
    /// that it is of a block device, and requests a filesystem of it.
    fn mounted_block_device(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_block_claim("ext4-now", size, dice);
        let class = *dice.pick(&["deleted", "kept"]);
        let (snapshot, take) = self.plan_snapshot(&claim, class, dice);
        let (name, adopt) = plan_adoption(self, snapshot, dice);
        let source = Some(Source::Snapshot(name));
        let (_, restore) = self.plan_claim("ext4-now", size, source, dice);
        vec![
            after(AT_ONCE, make, dice),
            after(SOON, take, dice),
            after(LATER, adopt, dice),
            after(SOON, restore, dice),
        ]
    }

    /// Takes two snapshots of a thick volume, of which one is all that a namespace may have on a node
    /// with troubles, and gives the first one up.
    fn large_snapshots(&mut self, dice: &mut Dice) -> Vec<Step> {
        let (claim, make) = self.plan_claim("thick-now", LARGE, None, dice);
        let (name, first) = self.plan_snapshot(&claim, "deleted", dice);
        let (_, second) = self.plan_snapshot(&claim, "deleted", dice);
        vec![
            after(AT_ONCE, make, dice),
            after(SOON, first, dice),
            after(SOON, second, dice),
            after(LATER, Action::DeleteSnapshot { name }, dice),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::history::{History, World};

    /// True if a filesystem is requested of the data of a block device.
    fn has_filesystem_of_block_device(steps: &[Step]) -> bool {
        let (mut devices, mut snapshots) = (BTreeSet::new(), BTreeSet::new());
        for step in steps {
            match &step.action {
                Action::Claim {
                    name, block: true, ..
                } => {
                    devices.insert(name);
                }
                Action::Snapshot { name, claim, .. } if devices.contains(claim) => {
                    snapshots.insert(name);
                }
                Action::Adopt { name, snapshot, .. } if snapshots.contains(snapshot) => {
                    snapshots.insert(name);
                }
                Action::Claim {
                    source: Some(Source::Snapshot(of)),
                    ..
                } if snapshots.contains(of) => return true,
                _ => {}
            }
        }
        false
    }

    /// True if a snapshot of a volume is taken after a little growth.
    fn has_snapshot_of_grown_volume(steps: &[Step]) -> bool {
        let mut grown = BTreeSet::new();
        for step in steps {
            match &step.action {
                Action::Grow { name, by } if LITTLE.contains(by) => {
                    grown.insert(name);
                }
                Action::Snapshot { claim, .. } if grown.contains(claim) => return true,
                _ => {}
            }
        }
        false
    }

    fn is_large(step: &Step) -> bool {
        matches!(&step.action, Action::Claim { size, .. } if size == LARGE)
    }

    #[test]
    fn about_every_third_history_has_each_row() {
        let (mut filesystems, mut copies, mut large) = (0, 0, 0);
        for seed in 0..60 {
            let steps = History::of(seed, World::Calm, 60).steps;
            filesystems += u64::from(has_filesystem_of_block_device(&steps));
            copies += u64::from(has_snapshot_of_grown_volume(&steps));
            large += u64::from(steps.iter().any(is_large));
        }
        for many in [filesystems, copies, large] {
            assert!((6..55).contains(&many), "{filesystems} {copies} {large}");
        }
    }
}
