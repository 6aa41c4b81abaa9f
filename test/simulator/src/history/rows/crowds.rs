//! Pods that come at once, and need more room together than a node has. What nodes publish of their room
//! lags behind, so a node is chosen that has none any more. These rows have draws of their own, so that
//! those of other steps stay.

use crate::dice::Dice;
use crate::history::Step;
use crate::history::expected::Expected;
use crate::history::rows::{AT_ONCE, after};

/// Sizes of volumes of which a pool has room for one: one that promises what it has, and one that
/// promises more.
const LARGE: [&str; 3] = ["400Mi", "400Mi", "1100Mi"];

/// How many pods come.
const PODS: usize = 4;

/// The time before a pod that comes with others, in milliseconds: the volume of the one before it is not
/// made yet.
const TOGETHER: (u64, u64) = (0, 10);

impl Expected {
    /// Steps in a row, seldom. Their objects count as expected from now on.
    pub(super) fn begin_crowd(&mut self, dice: &mut Dice) -> Option<Vec<Step>> {
        /// At so many steps in a thousand, a row begins: in about every third history of 60 steps.
        const CHANCE: u64 = 12;
        if dice.below(1000) >= CHANCE {
            return None;
        }
        let size = *dice.pick(&LARGE);
        let (mut steps, mut claims) = (Vec::new(), Vec::new());
        for _ in 0..PODS {
            let (claim, make) = self.plan_claim("ext4", size, None, dice);
            steps.push(after(AT_ONCE, make, dice));
            claims.push(claim);
        }
        for claim in claims {
            let (_, pod) = self.plan_pod(vec![claim], dice);
            steps.push(after(TOGETHER, pod, dice));
        }
        Some(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Action, History, World};

    fn is_large(step: &Step) -> bool {
        matches!(&step.action, Action::Claim { size, .. } if LARGE.contains(&size.as_str()))
    }

    #[test]
    fn about_every_third_history_has_a_crowd() {
        let with_crowd = (0..90).filter(|seed| {
            let steps = History::of(*seed, World::Rough, 60).steps;
            steps.iter().filter(|step| is_large(step)).count() >= PODS
        });
        let count = with_crowd.count();
        assert!((12..60).contains(&count), "{count}");
    }
}
