//! Rows of steps where files share blocks: snapshots of a volume in a series, while a pod writes to it,
//! snapshots of a block device in use, and groups of volumes in use, which may have such a device.

use crate::dice::Dice;
use crate::history::expected::{Expected, name_for};
use crate::history::rows::{AT_ONCE, LATER, MODEST, SOON, after};
use crate::history::{Action, Source, Step};

/// Other rows have other labels.
const LABELS: [&str; 3] = ["d", "e", "f"];
/// A time in which a pod writes to its volumes.
const AFTER_WRITES: (u64, u64) = (60_000, 300_000);

impl Expected {
    /// Steps in a row, seldom. Their objects count as expected from now on.
    pub(super) fn begin_row_of_shared_blocks(&mut self, dice: &mut Dice) -> Option<Vec<Step>> {
        /// At so many steps in a thousand, a row begins.
        const CHANCE: u64 = 25;
        if dice.below(1000) >= CHANCE {
            return None;
        }
        Some(match dice.below(3) {
            0 => self.snapshots_in_series(dice),
            1 => self.snapshots_of_raw_device(dice),
            _ => self.group_in_use(dice),
        })
    }

    /// Takes snapshots of a volume in use, one after the other, and gives one up or restores the last.
    fn snapshots_in_series(&mut self, dice: &mut Dice) -> Vec<Step> {
        let (class, size) = (*dice.pick(&["ext4-now", "btrfs-now"]), *dice.pick(&MODEST));
        let (claim, make) = self.plan_claim(class, size, None, dice);
        let (_, pod) = self.plan_pod(vec![claim.clone()], dice);
        let mut steps = vec![after(AT_ONCE, make, dice), after(SOON, pod, dice)];
        let mut taken = Vec::new();
        for _ in 0..2 + dice.below(2) {
            let (name, take) = self.plan_snapshot(&claim, "deleted", dice);
            steps.push(after(AFTER_WRITES, take, dice));
            taken.push(name);
        }
        let then = match dice.below(10) {
            0..4 => Some(Action::DeleteSnapshot {
                name: dice.pick(&taken).clone(),
            }),
            4..8 => {
                let source = taken.pop().map(Source::Snapshot);
                Some(self.plan_claim(class, size, source, dice).1)
            }
            _ => None,
        };
        steps.extend(then.map(|action| after(LATER, action, dice)));
        steps
    }

    /// Takes two snapshots of a block device that a pod has.
    fn snapshots_of_raw_device(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_block_claim("ext4-now", size, dice);
        let (_, pod) = self.plan_pod(vec![claim.clone()], dice);
        let (_, first) = self.plan_snapshot(&claim, "deleted", dice);
        let (_, second) = self.plan_snapshot(&claim, "deleted", dice);
        vec![
            after(AT_ONCE, make, dice),
            after(SOON, pod, dice),
            after(AFTER_WRITES, first, dice),
            after(AFTER_WRITES, second, dice),
        ]
    }

    /// Takes a group of up to three volumes that one pod has. One may be a block device: then there is
    /// no group as long as the pod has it, unless it is the only volume.
    fn group_in_use(&mut self, dice: &mut Dice) -> Vec<Step> {
        let (label, size) = (*dice.pick(&LABELS), *dice.pick(&MODEST));
        let mounted = dice.below(3);
        let (mut steps, mut claims) = (Vec::new(), Vec::new());
        let mut make = Vec::new();
        if mounted == 0 || dice.percent(50) {
            make.push(self.plan_block_claim("ext4-now", size, dice));
        }
        for _ in 0..mounted {
            make.push(self.plan_claim("ext4-now", size, None, dice));
        }
        for (name, action) in make {
            claims.push(name.clone());
            let label = label.to_owned();
            steps.push(after(AT_ONCE, action, dice));
            steps.push(after(AT_ONCE, Action::Label { name, label }, dice));
        }
        let (pod, start) = self.plan_pod(claims, dice);
        let take = Action::Group {
            name: name_for(std::iter::empty(), "h", dice),
            label: label.to_owned(),
            class: "deleted".to_owned(),
        };
        steps.push(after(SOON, start, dice));
        steps.push(after(AFTER_WRITES, take, dice));
        if dice.percent(40) {
            steps.push(after(AFTER_WRITES, Action::DeletePod { name: pod }, dice));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{ClusterOption, History, World};

    /// True if a step takes a group of such a row.
    fn takes_group(step: &Step) -> bool {
        matches!(&step.action, Action::Group { label, .. } if LABELS.contains(&label.as_str()))
    }

    #[test]
    fn there_are_such_rows_where_files_share_blocks() {
        let (mut with, mut without) = (0, 0);
        for seed in 0..100 {
            let history = History::of(seed, World::Calm, 60);
            let has_row = history.steps.iter().any(takes_group);
            if history.options.contains(&ClusterOption::Reflinks) {
                with += u64::from(has_row);
            } else {
                without += u64::from(has_row);
            }
        }
        assert!((3..40).contains(&with), "{with}");
        assert_eq!(without, 0);
    }

    #[test]
    fn groups_have_volumes_in_use_with_and_without_block_devices() {
        let mut kinds = std::collections::BTreeSet::new();
        for number in 0..60 {
            let mut dice = Dice::of(1, "groups", number);
            let steps = Expected::default().group_in_use(&mut dice);
            let blocks = steps.iter().filter_map(|step| match &step.action {
                Action::Claim { block, .. } => Some(*block),
                _ => None,
            });
            let blocks: Vec<bool> = blocks.collect();
            let in_use = steps.iter().find_map(|step| match &step.action {
                Action::Pod { claims, .. } => Some(claims.len()),
                _ => None,
            });
            assert_eq!(in_use, Some(blocks.len()));
            kinds.insert((blocks.len(), blocks.contains(&true)));
        }
        let expected = [(1, false), (1, true), (2, false), (2, true), (3, true)];
        assert_eq!(kinds, expected.into());
    }
}
