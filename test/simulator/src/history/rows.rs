//! Rows of steps that depend on each other, so that chance alone seldom brings them together. Each
//! row is something that users or administrators do, and none of it should leave anything behind.

use std::collections::VecDeque;

use crate::dice::Dice;
use crate::history::expected::Expected;
use crate::history::{Action, ClusterOption, Step};

mod absences;
mod classes_and_secrets;
mod copies;
mod crowds;
mod drivers;
mod groups_and_adoptions;
mod reserved;
mod room;
mod shared_blocks;
mod unusual_copies;

pub(super) use absences::Absences;
pub(super) use classes_and_secrets::{make_class, remove_class};
pub(super) use groups_and_adoptions::GroupsAndAdoptions;

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

/// Plans a row, seldom.
type Begin = fn(&mut Expected, &mut Dice) -> Option<Vec<Step>>;

/// Rows of one kind. They have draws of their own, so that those of other steps stay.
pub(super) struct Rows {
    /// The name of their draws. With another one, each seed would have another history.
    draws: &'static str,
    begin: Begin,
    /// What is next of a row.
    planned: VecDeque<Step>,
}

impl Rows {
    fn new(draws: &'static str, begin: Begin) -> Rows {
        Rows {
            draws,
            begin,
            planned: VecDeque::new(),
        }
    }

    /// All kinds that begin by chance alone in a cluster with these options. The first ones come before
    /// the others.
    pub(super) fn by_chance(options: &[ClusterOption]) -> Vec<Rows> {
        let mut all = vec![
            Rows::new("rare", Expected::begin_row_of_classes_and_secrets),
            Rows::new("crowds", Expected::begin_crowd),
            Rows::new("drivers", Expected::begin_row_of_drivers),
            Rows::new("unusual copies", Expected::begin_row_of_unusual_copies),
        ];
        if options.contains(&ClusterOption::Reflinks) {
            let begin = Expected::begin_row_of_shared_blocks;
            all.push(Rows::new("shared blocks", begin));
        }
        all
    }

    /// The step with this number, if it is one of a row. `expected` follows it.
    pub(super) fn at(&mut self, seed: u64, number: u64, expected: &mut Expected) -> Option<Step> {
        let mut dice = Dice::of(seed, self.draws, number);
        if self.planned.is_empty() {
            self.planned = (self.begin)(expected, &mut dice)?.into();
        } else if dice.percent(30) {
            // Others come between the steps.
            return None;
        }
        let step = self.planned.pop_front()?;
        expected.forget(&step.action);
        Some(step)
    }
}
