//! Rows of steps that come to the limits of drivers: more inline volumes than a namespace may have, and
//! a pool that no node has. They have draws of their own, so that those of other steps stay.

use std::collections::VecDeque;

use crate::dice::Dice;
use crate::history::expected::{Expected, name_for};
use crate::history::rows::{AT_ONCE, LATER, MODEST, SOON, after, make_class};
use crate::history::unusual::ClassKind;
use crate::history::{Action, Step};

/// Sizes of inline volumes: of the larger ones, a namespace may have as few on a node as of others.
const SIZES: [&str; 4] = ["1", "10Mi", "64Mi", "100M"];

/// What is next of the rows.
#[derive(Default)]
pub(in crate::history) struct Limits {
    planned: VecDeque<Step>,
}

impl Limits {
    /// The step with this number, if it is one of a row. `expected` follows it.
    pub(in crate::history) fn at(
        &mut self,
        seed: u64,
        number: u64,
        expected: &mut Expected,
    ) -> Option<Step> {
        /// At so many steps in a thousand, a row begins: each is in about every third history of 60
        /// steps.
        const CHANCE: u64 = 20;
        let mut dice = Dice::of(seed, "limits", number);
        if self.planned.is_empty() {
            if dice.below(1000) >= CHANCE {
                return None;
            }
            let row = if dice.percent(50) {
                expected.many_inline_volumes(&mut dice)
            } else {
                expected.pools_by_name(&mut dice)
            };
            self.planned = row.into();
        } else if dice.percent(30) {
            // Others come between the steps.
            return None;
        }
        let step = self.planned.pop_front()?;
        expected.forget(&step.action);
        Some(step)
    }
}

impl Expected {
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
}

#[cfg(test)]
mod tests {
    use crate::history::{Action, History, World};

    /// True for a claim of a class with a pool of no node.
    fn is_nowhere(action: &Action) -> bool {
        matches!(action, Action::Claim { class, .. } if class == "nowhere-now")
    }

    #[test]
    fn about_every_third_history_has_each_row() {
        let (mut inline, mut nowhere) = (0, 0);
        for seed in 0..60 {
            let steps = History::of(seed, World::Calm, 60).steps;
            let pods = steps
                .iter()
                .filter(|step| matches!(step.action, Action::InlinePod { .. }));
            inline += u64::from(pods.count() > 3);
            nowhere += u64::from(steps.iter().any(|step| is_nowhere(&step.action)));
        }
        for many in [inline, nowhere] {
            assert!((6..50).contains(&many), "{inline} {nowhere}");
        }
    }
}
