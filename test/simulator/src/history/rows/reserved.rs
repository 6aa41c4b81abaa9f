//! A row of steps with a node that is reserved for a while, and a pod that may run there.

use crate::dice::Dice;
use crate::history::expected::{Expected, name_for};
use crate::history::rows::{AT_ONCE, LATER, MODEST, SOON, after};
use crate::history::unusual::Unusual;
use crate::history::{Action, Step};

/// The node that each cluster has.
const NODE: &str = "n1";

impl Expected {
    /// Reserves a node, makes a pod that tolerates this, with a new volume, and releases the node.
    pub(super) fn reserved_node(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4", size, None, dice);
        let name = name_for(self.pods.keys(), "p", dice);
        self.pods.insert(name.clone(), vec![claim.clone()]);
        let node = NODE.to_owned();
        let reserve = Unusual::Reserve { node: node.clone() };
        let pod = Unusual::TolerantPod { name, claim };
        let [reserve, pod, release] =
            [reserve, pod, Unusual::Release { node }].map(|unusual| Action::Unusual { unusual });
        vec![
            after(AT_ONCE, reserve, dice),
            after(SOON, make, dice),
            after(SOON, pod, dice),
            after(LATER, release, dice),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, World};

    fn is_tolerant(action: &Action) -> bool {
        matches!(
            action,
            Action::Unusual {
                unusual: Unusual::TolerantPod { .. }
            }
        )
    }

    #[test]
    fn about_every_third_history_has_a_reserved_node() {
        let histories = (0..60).map(|seed| History::of(seed, World::Calm, 60));
        let many = histories
            .filter(|history| history.steps.iter().any(|step| is_tolerant(&step.action)))
            .count();
        assert!((6..50).contains(&many), "{many}");
    }
}
