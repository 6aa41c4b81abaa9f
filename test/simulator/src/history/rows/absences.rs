//! Rows of steps while something is missing. After a node has left for good, users take snapshots of
//! what they have, also of the volumes that were there. While no process leads, they make claims, and
//! take the data of a snapshot over. They have draws of their own, so that those of other steps stay.

use crate::dice::Dice;
use crate::history::expected::Expected;
use crate::history::rows::groups_and_adoptions::plan_adoption;
use crate::history::rows::{AT_ONCE, LATER, MODEST, Rows, SOON, after};
use crate::history::trouble::Trouble;
use crate::history::{Action, Step};

/// The most claims that snapshots are taken of: one of them is likely to have its volume there.
const MOST: usize = 4;

/// The name of the draws.
const DRAWS: &str = "absences";

/// Rows that begin with what the world does.
pub(in crate::history) struct Absences(Rows);

impl Default for Absences {
    fn default() -> Absences {
        Absences(Rows::new(DRAWS, |_, _| None))
    }
}

impl Absences {
    /// Notes what the world does at this step.
    pub(in crate::history) fn note(
        &mut self,
        seed: u64,
        number: u64,
        trouble: &Trouble,
        expected: &mut Expected,
    ) {
        let mut dice = Dice::of(seed, DRAWS, number);
        let row = match trouble {
            Trouble::NodeLeaves { returns: false, .. } => expected.snapshots_of_all(&mut dice),
            Trouble::LeadersDie { .. } => expected.without_a_leader(&mut dice),
            _ => return,
        };
        self.0.planned = row.into();
    }

    /// The step with this number, if it is one of a row. `expected` follows it.
    pub(in crate::history) fn at(
        &mut self,
        seed: u64,
        number: u64,
        expected: &mut Expected,
    ) -> Option<Step> {
        self.0.at(seed, number, expected)
    }
}

impl Expected {
    /// Takes a snapshot of each of some claims, and gives one up again.
    fn snapshots_of_all(&mut self, dice: &mut Dice) -> Vec<Step> {
        let mut claims: Vec<String> = self.claims.keys().cloned().collect();
        let (mut steps, mut names) = (Vec::new(), Vec::new());
        while !claims.is_empty() && names.len() < MOST {
            let at = usize::try_from(dice.below(claims.len() as u64)).unwrap_or_default();
            let (name, take) = self.plan_snapshot(&claims.swap_remove(at), "deleted", dice);
            steps.push(after(SOON, take, dice));
            names.push(name);
        }
        if !names.is_empty() {
            let name = dice.pick(&names).clone();
            steps.push(after(LATER, Action::DeleteSnapshot { name }, dice));
        }
        steps
    }

    /// Makes two claims that need no pod, one while the nodes still wait for a leader, and takes the
    /// data of a snapshot over.
    fn without_a_leader(&mut self, dice: &mut Dice) -> Vec<Step> {
        let mut steps = Vec::new();
        for time in [AT_ONCE, LATER] {
            let size = *dice.pick(&MODEST);
            let (_, make) = self.plan_claim("ext4-now", size, None, dice);
            steps.push(after(time, make, dice));
        }
        let snapshots: Vec<String> = self.snapshots.keys().cloned().collect();
        if !snapshots.is_empty() {
            let snapshot = dice.pick(&snapshots).clone();
            let (_, adopt) = plan_adoption(self, snapshot, dice);
            steps.push(after(LATER, adopt, dice));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, World};

    fn is_farewell(step: &Step) -> bool {
        matches!(
            step.action,
            Action::World {
                trouble: Trouble::NodeLeaves { returns: false, .. }
            }
        )
    }

    /// The number of snapshots that users take after a node has left for good.
    fn late_snapshots(history: &History) -> usize {
        let steps = history.steps.iter();
        let late = steps.skip_while(|step| !is_farewell(step));
        late.filter(|step| matches!(step.action, Action::Snapshot { .. }))
            .count()
    }

    #[test]
    fn about_every_third_history_has_snapshots_after_a_farewell() {
        let histories = (0..60).map(|seed| History::of(seed, World::Rough, 60));
        let many = histories
            .filter(|history| late_snapshots(history) >= 3)
            .count();
        assert!((8..50).contains(&many), "{many}");
    }
}
