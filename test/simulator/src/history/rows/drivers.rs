//! Rows of steps that bring drivers to what they seldom meet: more inline volumes than a namespace may
//! have, a pool that no node has, the limits of their room, copies that take all their space, a reserved
//! node, and a request that changes before its answer. They have draws of their own, so that those of other
//! steps stay.

use crate::dice::Dice;
use crate::history::expected::{Expected, name_for};
use crate::history::rows::{AT_ONCE, LATER, MODEST, SOON, after, make_class, remove_class};
use crate::history::unusual::ClassKind;
use crate::history::{Action, Source, Step};

/// Sizes of inline volumes. Each is small enough for a node.
const SIZES: [&str; 4] = ["1", "10Mi", "64Mi", "100M"];

impl Expected {
    /// Steps in a row, seldom. Their objects count as expected from now on.
    pub(super) fn begin_row_of_drivers(&mut self, dice: &mut Dice) -> Option<Vec<Step>> {
        /// At so many steps in a thousand, one of the first six rows begins, and at so many another one:
        /// each is in about every third history of 60 steps.
        const CHANCES: (u64, u64) = (60, 8);
        let draw = dice.below(1000);
        if draw >= CHANCES.0 {
            let is_due = draw < CHANCES.0 + CHANCES.1;
            return is_due.then(|| self.thick_copies(dice));
        }
        Some(match dice.below(6) {
            0 => self.many_inline_volumes(dice),
            1 => self.pools_by_name(dice),
            2 => self.rest_of_room(dice),
            3 => self.too_thick_to_make(dice),
            4 => self.reserved_node(dice),
            _ => self.replaced_class(dice),
        })
    }

    /// Makes pods with inline volumes, more than their namespace may have on a node, and deletes one
    /// of those that run.
    fn many_inline_volumes(&mut self, dice: &mut Dice) -> Vec<Step> {
        let (mut steps, mut names) = (Vec::new(), Vec::new());
        for _ in 0..3 + dice.below(5) {
            let name = name_for(self.pods.keys(), "p", dice);
            self.pods.insert(name.clone(), Vec::new());
            names.push(name.clone());
            let size = (*dice.pick(&SIZES)).to_owned();
            steps.push(after(AT_ONCE, Action::InlinePod { name, size }, dice));
        }
        let name = dice.pick(&names).clone();
        steps.push(after(LATER, Action::DeletePod { name }, dice));
        steps
    }

    /// Makes a class that names the nodes' pool, and one that names a pool of no node, and uses both.
    fn pools_by_name(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let of_pool = make_class(ClassKind::Storage, "pool-now", "pool");
        let (claim, make) = self.plan_claim("pool-now", size, None, dice);
        let of_none = make_class(ClassKind::Storage, "nowhere-now", "nowhere");
        let (_, make_nowhere) = self.plan_claim("nowhere-now", size, None, dice);
        let (_, pod) = self.plan_pod(vec![claim], dice);
        vec![
            after(AT_ONCE, of_none, dice),
            after(AT_ONCE, make_nowhere, dice),
            after(AT_ONCE, of_pool, dice),
            after(AT_ONCE, make, dice),
            after(SOON, pod, dice),
        ]
    }

    /// Copies a thick volume. Each copy has all its space from the beginning.
    fn thick_copies(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (first, make) = self.plan_claim("thick-now", size, None, dice);
        let (snapshot, take) = self.plan_snapshot(&first, "deleted", dice);
        let mut steps = vec![after(AT_ONCE, make, dice), after(SOON, take, dice)];
        for (time, source) in [
            (AT_ONCE, Source::Claim(first)),
            (SOON, Source::Snapshot(snapshot)),
        ] {
            let (_, copy) = self.plan_claim("thick-now", size, Some(source), dice);
            steps.push(after(time, copy, dice));
        }
        steps
    }

    /// Copies a volume a few times, and makes its class again with another filesystem before all copies
    /// are done. What asks for a copy again asks for something else.
    fn replaced_class(&mut self, dice: &mut Dice) -> Vec<Step> {
        let class = *dice.pick(&["ext4-now", "kept-now"]);
        let (size, of) = (*dice.pick(&MODEST), ClassKind::Storage);
        let (source, make) = self.plan_claim(class, size, None, dice);
        let mut steps = vec![after(AT_ONCE, make, dice)];
        for time in [SOON, AT_ONCE, AT_ONCE] {
            let source = Some(Source::Claim(source.clone()));
            let (_, copy) = self.plan_claim(class, size, source, dice);
            steps.push(after(time, copy, dice));
        }
        let version = *dice.pick(&["btrfs", "xfs"]);
        for (time, version) in [(SOON, version), (LATER, "own")] {
            steps.push(after(AT_ONCE, remove_class(of, class), dice));
            steps.push(after(time, make_class(of, class, version), dice));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::unusual::Unusual;
    use crate::history::{History, World};

    /// True for a claim of a class with a pool of no node.
    fn is_nowhere(action: &Action) -> bool {
        matches!(action, Action::Claim { class, .. } if class == "nowhere-now")
    }

    /// True for a copy of a thick volume.
    fn is_thick_copy(action: &Action) -> bool {
        matches!(action, Action::Claim {
            class, source: Some(Source::Claim(_)), size, ..
        } if class == "thick-now" && MODEST.contains(&size.as_str()))
    }

    /// True for a class with another filesystem than its own.
    fn has_another_filesystem(action: &Action) -> bool {
        matches!(action, Action::Unusual {
            unusual: Unusual::MakeClass { name, version, .. },
        } if name == "kept-now" && version == "btrfs")
    }

    #[test]
    fn about_every_third_history_has_each_row() {
        let (mut inline, mut nowhere, mut thick, mut replaced) = (0, 0, 0, 0);
        for seed in 0..60 {
            let steps = History::of(seed, World::Calm, 60).steps;
            let pods = steps
                .iter()
                .filter(|step| matches!(step.action, Action::InlinePod { .. }));
            inline += u64::from(pods.count() > 3);
            nowhere += u64::from(steps.iter().any(|step| is_nowhere(&step.action)));
            thick += u64::from(steps.iter().any(|step| is_thick_copy(&step.action)));
            let mut actions = steps.iter().map(|step| &step.action);
            replaced += u64::from(actions.any(has_another_filesystem));
        }
        for many in [inline, nowhere, thick] {
            assert!((6..50).contains(&many), "{inline} {nowhere} {thick}");
        }
        // One of four combinations.
        assert!(replaced > 1, "{replaced}");
    }
}
