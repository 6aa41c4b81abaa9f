//! Rows of steps that depend on each other, so that chance alone seldom brings them together. Each
//! row is something that users or administrators do, and none of it should leave anything behind.

use std::collections::VecDeque;

use crate::dice::Dice;
use crate::history::expected::Expected;
use crate::history::{Action, Step};

mod absences;
mod classes_and_secrets;
mod copies;
mod crowds;
mod drivers;
mod groups_and_adoptions;
mod reserved;
mod room;
mod unusual_copies;

pub(super) use absences::Absences;
pub(super) use classes_and_secrets::{ClassesAndSecrets, make_class, remove_class};
pub(super) use crowds::Crowds;
pub(super) use drivers::Drivers;
pub(super) use groups_and_adoptions::GroupsAndAdoptions;
pub(super) use unusual_copies::UnusualCopies;

/// Sizes of volumes that copies are made of: enough for ext4 and btrfs, and for a growth.
const MODEST: [&str; 3] = ["10Mi", "50M", "64Mi"];

/// Larger than the disk under a pool, which may promise more than that.
const LARGER_THAN_DISK: [&str; 2] = ["900M", "1500M"];

/// Times before a step, in milliseconds: the shortest, and by how much it varies.
const AT_ONCE: (u64, u64) = (0, 2000);
const SOON: (u64, u64) = (5000, 20_000);
const LATER: (u64, u64) = (20_000, 60_000);

fn after((least, varies): (u64, u64), action: Action, dice: &mut Dice) -> Step {
    Step {
        wait: least + dice.below(varies),
        action,
    }
}

/// The next step of the planned row. `begin` may plan one if there is none. `expected` follows the step.
fn next_step(
    planned: &mut VecDeque<Step>,
    expected: &mut Expected,
    dice: &mut Dice,
    begin: fn(&mut Expected, &mut Dice) -> Option<Vec<Step>>,
) -> Option<Step> {
    if planned.is_empty() {
        *planned = begin(expected, dice)?.into();
    } else if dice.percent(30) {
        // Others come between the steps.
        return None;
    }
    let step = planned.pop_front()?;
    expected.forget(&step.action);
    Some(step)
}
