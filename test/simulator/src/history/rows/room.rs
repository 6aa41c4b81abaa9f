//! Rows of steps that bring pools to the limits of their room: a claim for all of it, and one that nodes
//! seem to have room for, and do not have.

use crate::dice::Dice;
use crate::history::expected::{Claimed, Expected, name_for};
use crate::history::rows::{LARGER_THAN_DISK, LATER, after};
use crate::history::unusual::Unusual;
use crate::history::{Action, Step};

/// Until then, nodes have published what they have left.
const PUBLISHED: (u64, u64) = (70_000, 60_000);
/// A time in which a claim is tried often.
const LONG: (u64, u64) = (300_000, 300_000);

impl Expected {
    /// Claims all that a node has left, and gives that up.
    pub(super) fn rest_of_room(&mut self, dice: &mut Dice) -> Vec<Step> {
        let (name, class) = (name_for(self.claims.keys(), "c", dice), "ext4-now");
        let claimed = Claimed::new(class, "900M");
        self.claims.insert(name.clone(), claimed);
        let rest = Action::Unusual {
            unusual: Unusual::Rest {
                name: name.clone(),
                class: class.to_owned(),
            },
        };
        vec![
            after(PUBLISHED, rest, dice),
            after(LATER, Action::DeleteClaim { name }, dice),
        ]
    }

    /// Claims a thick volume that is larger than each disk. Nodes publish their room for the class
    /// alone, which makes thin volumes, so that several seem to have room.
    pub(super) fn too_thick_to_make(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&LARGER_THAN_DISK);
        let (name, make) = self.plan_thick_claim("ext4-now", size, dice);
        vec![
            after(PUBLISHED, make, dice),
            after(LONG, Action::DeleteClaim { name }, dice),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, World};

    fn is_rest(action: &Action) -> bool {
        matches!(
            action,
            Action::Unusual {
                unusual: Unusual::Rest { .. }
            }
        )
    }

    fn is_too_thick(action: &Action) -> bool {
        matches!(action, Action::Claim { attributes: Some(class), size, .. }
            if class == "thick" && LARGER_THAN_DISK.contains(&size.as_str()))
    }

    #[test]
    fn about_every_third_history_has_each_row() {
        let (mut rest, mut thick) = (0, 0);
        for seed in 0..60 {
            let steps = History::of(seed, World::Calm, 60).steps;
            let mut actions = steps.iter().map(|step| &step.action);
            rest += u64::from(actions.clone().any(is_rest));
            thick += u64::from(actions.any(is_too_thick));
        }
        for many in [rest, thick] {
            assert!((6..50).contains(&many), "{rest} {thick}");
        }
    }
}
