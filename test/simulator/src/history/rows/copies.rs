//! Rows of steps with copies: of snapshots that go or can't be taken, of the same size, of another
//! filesystem, of data that is kept. Others request more than there can be.

use std::collections::VecDeque;

use crate::dice::Dice;
use crate::history::expected::Expected;
use crate::history::rows::{AT_ONCE, LARGER_THAN_DISK, LATER, MODEST, SOON, after};
use crate::history::{Action, Source, Step};

/// Sizes that a driver rounds up.
const ROUNDED_UP: [&str; 5] = ["1", "5000001", "100M", "77777777", "333333333"];
/// Growth for which no pool has room.
const TOO_MUCH: [u64; 2] = [4 << 30, 1 << 40];

impl Expected {
    /// Steps in a row. Their objects count as expected from now on.
    pub(in crate::history) fn row_of_copies(&mut self, dice: &mut Dice) -> VecDeque<Step> {
        let steps = match dice.below(9) {
            0 => self.late_restore(dice),
            1 => self.broken_snapshot(dice),
            2 => self.same_size(dice),
            3 => self.kept_copy(dice),
            4 => self.too_much(dice),
            5 => self.other_filesystem(dice),
            6 => self.too_thick(dice),
            _ => self.thick_at_once(dice),
        };
        steps.into()
    }

    /// Restores from a snapshot that is being deleted, and that another restore keeps.
    fn late_restore(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4-now", size, None, dice);
        let (snapshot, take) = self.plan_snapshot(&claim, "deleted", dice);
        let source = Some(Source::Snapshot(snapshot.clone()));
        // A restore does not wait for a pod, because only one node can make it.
        let waiting = [("wrong-now", size), ("ext4-now", "1Ti"), ("ext4", size)];
        let (class, requested) = *dice.pick(&waiting);
        let (early, restore) = self.plan_claim(class, requested, source.clone(), dice);
        let (_, restore_late) = self.plan_claim("ext4-now", size, source, dice);
        let end = if class == "ext4" && dice.percent(60) {
            self.plan_pod(vec![early], dice).1
        } else {
            Action::DeleteClaim { name: early }
        };
        vec![
            after(AT_ONCE, make, dice),
            after(SOON, take, dice),
            after(LATER, restore, dice),
            after(SOON, Action::DeleteSnapshot { name: snapshot }, dice),
            after(SOON, restore_late, dice),
            after(SOON, end, dice),
        ]
    }

    /// Takes two snapshots of a claim, one with a class that does not exist, and deletes the claim.
    fn broken_snapshot(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4-now", size, None, dice);
        let (_, broken) = self.plan_snapshot(&claim, "none", dice);
        let (_, good) = self.plan_snapshot(&claim, "deleted", dice);
        vec![
            after(AT_ONCE, make, dice),
            after(SOON, broken, dice),
            after(AT_ONCE, good, dice),
            after(LATER, Action::DeleteClaim { name: claim }, dice),
        ]
    }

    /// Restores from a snapshot with the size of the claim that it was taken of.
    fn same_size(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&ROUNDED_UP);
        let class = *dice.pick(&["ext4-now", "btrfs-now"]);
        let (claim, make) = self.plan_claim(class, size, None, dice);
        let (snapshot, take) = self.plan_snapshot(&claim, "deleted", dice);
        let source = Some(Source::Snapshot(snapshot));
        let (_, restore) = self.plan_claim(class, size, source, dice);
        vec![
            after(AT_ONCE, make, dice),
            after(SOON, take, dice),
            after(SOON, restore, dice),
        ]
    }

    /// Copies a volume, uses the copy in no pod, and gives up its claim and its volume object. Its
    /// data is to be kept.
    fn kept_copy(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4-now", size, None, dice);
        let mut steps = vec![after(AT_ONCE, make, dice)];
        let source = if dice.percent(50) {
            let (snapshot, take) = self.plan_snapshot(&claim, "deleted", dice);
            steps.push(after(SOON, take, dice));
            Source::Snapshot(snapshot)
        } else {
            Source::Claim(claim)
        };
        let (copy, restore) = self.plan_claim("kept-now", size, Some(source), dice);
        let volume = Action::DeleteVolume { name: copy.clone() };
        steps.push(after(SOON, restore, dice));
        steps.push(after(LATER, volume, dice));
        steps.push(after(SOON, Action::DeleteClaim { name: copy }, dice));
        steps
    }

    /// Copies a volume with the class of another filesystem, which is refused.
    fn other_filesystem(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4-now", size, None, dice);
        let mut steps = vec![after(AT_ONCE, make, dice)];
        // Without a pod, nothing may have been written to it yet.
        let (_, pod) = self.plan_pod(vec![claim.clone()], dice);
        steps.push(after(AT_ONCE, pod, dice));
        let source = if dice.percent(50) {
            let (snapshot, take) = self.plan_snapshot(&claim, "deleted", dice);
            steps.push(after(LATER, take, dice));
            Source::Snapshot(snapshot)
        } else {
            Source::Claim(claim)
        };
        let (_, copy) = self.plan_claim("btrfs-now", size, Some(source), dice);
        steps.push(after(LATER, copy, dice));
        steps
    }

    /// Requests more than there can be, and then less again.
    fn too_much(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (name, make) = self.plan_claim("ext4-now", size, None, dice);
        let grow = Action::Grow {
            name: name.clone(),
            by: *dice.pick(&TOO_MUCH),
        };
        vec![
            after(AT_ONCE, make, dice),
            after(SOON, grow, dice),
            after(LATER, Action::TakeBack { name }, dice),
        ]
    }

    /// Selects the attributes of a thick volume for one that is larger than the disk, and then
    /// others.
    fn too_thick(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&LARGER_THAN_DISK);
        let (name, make) = self.plan_claim("ext4-now", size, None, dice);
        let thick = Action::Attributes {
            name: name.clone(),
            class: "thick".to_owned(),
        };
        let other = Action::Attributes {
            name,
            class: (*dice.pick(&["direct", "buffered"])).to_owned(),
        };
        vec![
            after(AT_ONCE, make, dice),
            after(SOON, thick, dice),
            after(LATER, other, dice),
        ]
    }

    /// Claims a thick volume for which no disk has the space. Its class has room for a thin one, so a
    /// node is chosen that gives the claim back.
    fn thick_at_once(&mut self, dice: &mut Dice) -> Vec<Step> {
        let (size, class) = (*dice.pick(&LARGER_THAN_DISK), "ext4-now");
        let (name, make) = self.plan_thick_claim(class, size, dice);
        let then = if dice.percent(50) {
            Action::DeleteClaim { name }
        } else {
            let size = *dice.pick(&MODEST);
            self.plan_claim(class, size, None, dice).1
        };
        vec![after(LATER, make, dice), after(LATER, then, dice)]
    }
}

#[cfg(test)]
mod tests {
    use crate::history::{Action, History, Source, World};

    /// True if a claim is restored from a snapshot after its deletion. A snapshot with its name
    /// that comes later is another one.
    fn has_late_restore(history: &History) -> bool {
        let mut deleted = Vec::new();
        for step in &history.steps {
            match &step.action {
                Action::DeleteSnapshot { name } => deleted.push(name),
                Action::Snapshot { name, .. }
                | Action::Preprovisioned { name, .. }
                | Action::Adopt { name, .. } => deleted.retain(|one| *one != name),
                Action::Claim {
                    source: Some(Source::Snapshot(snapshot)),
                    ..
                } if deleted.contains(&snapshot) => return true,
                _ => {}
            }
        }
        false
    }

    /// True for a copy of the class of btrfs of something of another class.
    fn has_other_filesystem(history: &History) -> bool {
        let of_ext4 = |name: &String| {
            let mut steps = history.steps.iter();
            steps.any(|step| {
                matches!(&step.action, Action::Claim { name: one, class, .. }
                    if one == name && class == "ext4-now")
            })
        };
        let mut steps = history.steps.iter();
        steps.any(|step| match &step.action {
            Action::Claim {
                class,
                source: Some(Source::Claim(source)),
                ..
            } => class == "btrfs-now" && of_ext4(source),
            _ => false,
        })
    }

    #[test]
    fn about_every_third_history_copies_with_another_filesystem() {
        let histories = (0..60).map(|seed| History::of(seed, World::Calm, 60));
        let many = histories.filter(has_other_filesystem).count();
        assert!((6..50).contains(&many), "{many}");
    }

    #[test]
    fn histories_have_rows_of_steps_and_follow_from_their_seeds() {
        let histories: Vec<History> = (0..20)
            .map(|seed| History::of(seed, World::Calm, 60))
            .collect();
        assert!(histories.iter().any(has_late_restore));
        for history in &histories {
            let again = History::of(history.seed, World::Calm, 60);
            assert_eq!(again.steps.len(), 60);
            let [first, second] = [history, &again].map(|one| format!("{:?}", one.steps));
            assert_eq!(first, second, "seed {}", history.seed);
        }
    }
}
