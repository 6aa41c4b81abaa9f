//! Histories that a real cluster can repeat: of one node, without troubles, and with a quiet time
//! after each step. They have sizes for which each disk has room, and others for which none has.

use std::collections::VecDeque;

use crate::dice::Dice;
use crate::filesystems;
use crate::history::expected::{CLASSES, Expected};
use crate::history::rows::{make_class, remove_class};
use crate::history::unusual::ClassKind;
use crate::history::{Action, History, Step, World};
use crate::users::bytes;

/// The most that all volumes of a history have together, in bytes. The simulated disk has more, and
/// so has that of each machine that runs a real cluster.
const BUDGET: u64 = 512 << 20;
/// The largest size that takes part of the budget.
const LARGEST: u64 = 100_000_000;
/// Larger than each pool.
const TOO_LARGE: u64 = 1 << 40;

/// What the generator expects to exist, and what is left of the budget.
#[derive(Clone)]
struct Draft {
    expected: Expected,
    /// What is next of what a user does in a row.
    planned: VecDeque<Action>,
    budget: u64,
}

impl History {
    /// The history of a seed that a real cluster can repeat. After so many steps, the namespace may
    /// be deleted.
    pub(crate) fn comparable(seed: u64, steps: u64) -> History {
        let mut draft = Draft {
            expected: Expected::default(),
            planned: VecDeque::new(),
            budget: BUDGET,
        };
        let mut actions: Vec<Action> = (0..steps)
            .map(|number| draft.next(&mut Dice::of(seed, "comparable", number)))
            .collect();
        actions.extend(end(&mut Dice::of(seed, "comparable end", 0)));
        let steps = actions.into_iter().map(|action| Step { wait: 0, action });
        History {
            seed,
            world: World::Calm,
            tight: false,
            attach: false,
            options: Vec::new(),
            long_names: false,
            prompt: true,
            fast_end: false,
            last: None,
            about: String::new(),
            steps: steps.collect(),
        }
    }
}

/// How a history ends: with the namespace, mostly.
fn end(dice: &mut Dice) -> Vec<Action> {
    match dice.below(3) {
        0 => Vec::new(),
        1 => vec![Action::DeleteNamespace],
        _ => vec![Action::DeleteNamespace, Action::Namespace],
    }
}

impl Draft {
    /// The next step. Of what chance offers, the first that a real cluster can repeat.
    fn next(&mut self, dice: &mut Dice) -> Action {
        loop {
            let mut draft = self.clone();
            if let Some(action) = draft.offer(dice) {
                *self = draft;
                return action;
            }
        }
    }

    /// A step by chance: of a row of steps, or else a single one. None if a real cluster could not
    /// repeat it.
    fn offer(&mut self, dice: &mut Dice) -> Option<Action> {
        if self.planned.is_empty() && dice.percent(30) {
            self.planned = self.row(dice);
            let row = self.planned.clone();
            if !row.iter().all(|action| self.takes(action)) {
                return None;
            }
        }
        if dice.percent(75)
            && let Some(action) = self.planned.pop_front()
        {
            self.expected.forget(&action);
            return Some(action);
        }
        let action = self.expected.next(dice);
        self.takes(&action).then_some(action)
    }

    /// What a user does in a row.
    fn row(&mut self, dice: &mut Dice) -> VecDeque<Action> {
        if dice.percent(20) {
            return self.class_that_comes_back(dice).into();
        }
        let steps = self.expected.row_of_copies(dice).into_iter();
        steps.map(|step| step.action).collect()
    }

    /// Deletes a class, claims a volume of it, and creates the class again.
    fn class_that_comes_back(&mut self, dice: &mut Dice) -> [Action; 3] {
        let class = *dice.pick(&CLASSES);
        let (_, claim) = self.expected.plan_claim(class, "10Mi", None, dice);
        [
            remove_class(ClassKind::Storage, class),
            claim,
            make_class(ClassKind::Storage, class, "own"),
        ]
    }

    /// True if a real cluster can repeat a step, with the same result. Takes its size from the
    /// budget.
    fn takes(&mut self, action: &Action) -> bool {
        match action {
            Action::Claim { class, size, .. } | Action::EphemeralPod { class, size, .. } => {
                self.spend(least_of(class), size)
            }
            Action::InlinePod { size, .. } => self.spend(filesystems::smallest("ext4"), size),
            // Not every machine can grow a mounted ext4.
            Action::Grow { name, .. } if self.is_used(name) => false,
            Action::Grow { by, .. } => *by >= TOO_LARGE || self.spend(0, &by.to_string()),
            Action::World { .. } => false,
            _ => true,
        }
    }

    /// Takes a size from the budget. False if it has not enough. What is too large for each pool
    /// takes nothing.
    fn spend(&mut self, least: u64, size: &str) -> bool {
        let size = bytes(&size.into());
        if size >= TOO_LARGE {
            return true;
        }
        let left = self.budget.checked_sub(size.max(least));
        self.budget = left.unwrap_or(self.budget);
        left.is_some() && size <= LARGEST
    }

    /// True if a pod may use a claim.
    fn is_used(&self, claim: &str) -> bool {
        let mut pods = self.expected.pods.values();
        pods.any(|claims| claims.iter().any(|used| used == claim))
    }
}

/// The least size of a volume of a class, in bytes. Its name begins with its filesystem, or it is
/// of ext4.
fn least_of(class: &str) -> u64 {
    filesystems::smallest(class.split('-').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparable_histories_follow_from_their_seeds_and_have_room() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 1..=40 {
            let history = History::comparable(seed, 9);
            let again = History::comparable(seed, 9);
            assert_eq!(format!("{history:?}"), format!("{again:?}"));
            assert!((9..=11).contains(&history.steps.len()), "{history:?}");
            let mut sum = 0;
            for Step { action, .. } in &history.steps {
                if let Action::Claim { class, size, .. } = action {
                    let size = bytes(&size.as_str().into());
                    sum += if size < TOO_LARGE {
                        size.max(least_of(class))
                    } else {
                        0
                    };
                }
                let text = serde_json::to_value(action).unwrap();
                let kind = match action {
                    Action::Unusual { .. } => &text["unusual"]["kind"],
                    _ => &text["do"],
                };
                kinds.insert(kind.as_str().unwrap().to_owned());
            }
            assert!(sum <= BUDGET, "seed {seed}: {sum} bytes");
        }
        // All that users do, but for what few histories have.
        for kind in [
            "claim",
            "pod",
            "snapshot",
            "grow",
            "deleteClaim",
            "deletePod",
            "deleteSnapshot",
            "removeClass",
            "makeClass",
            "deleteNamespace",
        ] {
            assert!(kinds.contains(kind), "{kind}: {kinds:?}");
        }
    }

    fn grow(by: u64) -> Action {
        let name = "c1".to_owned();
        Action::Grow { name, by }
    }

    #[test]
    fn a_pod_keeps_its_claim_from_growing() {
        let mut draft = Draft {
            expected: Expected::default(),
            planned: VecDeque::new(),
            budget: BUDGET,
        };
        assert!(draft.takes(&grow(1 << 20)));
        assert!(draft.takes(&grow(1 << 40)));
        assert!(!draft.takes(&grow(4 << 30)));
        let claims = vec!["c1".to_owned()];
        draft.expected.pods.insert("p1".to_owned(), claims);
        assert!(!draft.takes(&grow(1 << 20)));
    }
}
