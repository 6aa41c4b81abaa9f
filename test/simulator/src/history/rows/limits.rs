//! Rows of steps that come to the limits of drivers: more inline volumes than a namespace may have.
//! They have draws of their own, so that those of other steps stay.

use std::collections::VecDeque;

use crate::dice::Dice;
use crate::history::expected::{Expected, name_for};
use crate::history::rows::{AT_ONCE, LATER, after};
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
        /// At so many steps in a thousand, a row begins: in about every third history of 60 steps.
        const CHANCE: u64 = 8;
        let mut dice = Dice::of(seed, "limits", number);
        if self.planned.is_empty() {
            if dice.below(1000) >= CHANCE {
                return None;
            }
            self.planned = expected.many_inline_volumes(&mut dice).into();
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
}

#[cfg(test)]
mod tests {
    use crate::history::{Action, History, World};

    #[test]
    fn about_every_third_history_has_many_inline_volumes() {
        let histories = (0..60).map(|seed| History::of(seed, World::Calm, 60));
        let many = histories.filter(|history| {
            let steps = history.steps.iter();
            let inline = steps.filter(|step| matches!(step.action, Action::InlinePod { .. }));
            inline.count() > 3
        });
        let many = many.count();
        assert!((10..40).contains(&many), "{many}");
    }
}
