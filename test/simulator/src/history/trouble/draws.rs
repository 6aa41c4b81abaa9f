//! Which troubles come, and when. Some have draws of their own, so that no other step of a history
//! changes.

use crate::dice::Dice;
use crate::history::World;
use crate::history::trouble::{Bar, Damage, PoolFile, Trouble};

/// The answers of an API server that can't serve a request now.
const CODES: [u16; 3] = [429, 500, 503];

impl Trouble {
    /// A trouble of a random kind, in a rough world.
    fn rough(dice: &mut Dice) -> Trouble {
        match dice.below(100) {
            draw @ 0..74 => Trouble::passing(draw, dice),
            74..86 => Trouble::Backup,
            86..92 => Trouble::Restore,
            92..97 => Trouble::greed(dice),
            _ => Trouble::Moderation,
        }
    }

    /// A trouble of a random kind, in a hard world.
    fn hard(dice: &mut Dice) -> Trouble {
        match dice.below(100) {
            0..40 => {
                let most = *dice.pick(&[4, 20, 60]);
                Trouble::NodeDiesAfter {
                    node: node(dice),
                    effects: dice.below(most),
                    seconds: time(dice),
                }
            }
            40..60 => Trouble::NodeReboots {
                node: node(dice),
                seconds: time(dice),
            },
            60..75 => Trouble::RecordDamaged {
                node: node(dice),
                record: dice.below(1000),
                damage: *dice.pick(&Damage::ALL),
                seconds: time(dice),
            },
            _ => {
                let draw = dice.below(74);
                Trouble::passing(draw, dice)
            }
        }
    }

    /// A power cut at this step of a hard world, if there is one. It has draws of its own, so that
    /// no other step changes.
    fn power_cut(seed: u64, step: u64) -> Option<Trouble> {
        /// Of so many steps in a hundred, one is a power cut.
        const CHANCE: u64 = 4;
        let mut dice = Dice::of(seed, "power cut", step);
        dice.percent(CHANCE).then(|| {
            let most = *dice.pick(&[6, 25, 80]);
            Trouble::PowerCut {
                node: node(&mut dice),
                effects: dice.below(most),
                seconds: time(&mut dice),
            }
        })
    }

    /// A trouble that is soon over, for a number below 74.
    fn passing(draw: u64, dice: &mut Dice) -> Trouble {
        match draw {
            0..22 => Trouble::NodeDies {
                node: node(dice),
                seconds: time(dice),
            },
            22..30 => Trouble::KubeletDies { node: node(dice) },
            30..40 => Trouble::ReplicaDies {
                replica: replica(dice),
                seconds: time(dice),
            },
            40..47 => Trouble::ReplicaLate {
                replica: replica(dice),
                seconds: 100 + dice.below(200),
            },
            47..58 => Trouble::AnswersLost {
                percent: *dice.pick(&[5, 20, 60]),
                seconds: time(dice),
            },
            58..66 => Trouble::CallsLost {
                percent: *dice.pick(&[10, 30]),
                seconds: time(dice),
            },
            _ => Trouble::Outage {
                seconds: time(dice),
            },
        }
    }

    /// More copies than the 32 threads that a driver has for one kind of work. Each further copy makes
    /// all others slower to simulate.
    fn greed(dice: &mut Dice) -> Trouble {
        Trouble::Greed {
            copies: 38 + dice.below(6),
        }
    }

    /// What the world does at this step of a history, if anything. Greed needs time to show, so it
    /// often comes early.
    pub(crate) fn at(seed: u64, world: World, step: u64) -> Option<Trouble> {
        /// Of so many steps in a hundred, the world makes one.
        const CHANCE: u64 = 20;
        /// The step at which greed comes early.
        const EARLY: u64 = 3;
        /// The step at which greed ends. Its calls are most of a history, and what comes of them shows
        /// long before.
        const END_OF_GREED: u64 = 60;
        let mut dice = Dice::of(seed, "world", step);
        match world {
            World::Calm => None,
            World::Rough if step == EARLY && dice.percent(40) => Some(Trouble::greed(&mut dice)),
            World::Rough if step == END_OF_GREED => Some(Trouble::Moderation),
            World::Rough => Trouble::farewell(seed, step)
                .or_else(|| Trouble::barred(seed, step))
                .or_else(|| Trouble::leaderless(seed, step))
                .or_else(|| Trouble::full_for_long(seed, step))
                .or_else(|| dice.percent(CHANCE).then(|| Trouble::rough(&mut dice)))
                .filter(|trouble| step < END_OF_GREED || !trouble.is_of_greed())
                .or_else(|| Trouble::more(seed, world, step)),
            World::Hard => Trouble::farewell(seed, step)
                .or_else(|| Trouble::barred(seed, step))
                .or_else(|| Trouble::leaderless(seed, step))
                .or_else(|| Trouble::full_for_long(seed, step))
                .or_else(|| Trouble::power_cut(seed, step))
                .or_else(|| dice.percent(CHANCE).then(|| Trouble::hard(&mut dice)))
                .or_else(|| Trouble::more(seed, world, step)),
        }
    }

    /// A node that leaves for good at this step, after volumes were made there and before users delete
    /// them.
    fn farewell(seed: u64, step: u64) -> Option<Trouble> {
        let mut dice = once(seed, "farewell", (20, 35), step)?;
        Some(Trouble::NodeLeaves {
            node: node(&mut dice),
            seconds: 0,
            returns: false,
        })
    }

    /// A node that takes no ordinary pods from this step on, for much of a history.
    fn barred(seed: u64, step: u64) -> Option<Trouble> {
        let mut dice = once(seed, "barred", (5, 20), step)?;
        Some(Trouble::NodeBarred {
            node: node(&mut dice),
            by: *dice.pick(&[Bar::Taint, Bar::Taint, Bar::Cordon]),
            seconds: 1800 + dice.below(3600),
        })
    }

    /// A time without a leader that begins at this step, longer than nodes wait for one: then each
    /// watches all objects.
    fn leaderless(seed: u64, step: u64) -> Option<Trouble> {
        let mut dice = once(seed, "leaderless", (15, 40), step)?;
        Some(Trouble::LeadersDie {
            seconds: 400 + dice.below(500),
        })
    }

    /// A disk that is full from this step on, for longer than from one look at the health of volumes
    /// to the next.
    fn full_for_long(seed: u64, step: u64) -> Option<Trouble> {
        let mut dice = once(seed, "full", (10, 30), step)?;
        Some(Trouble::DiskFull {
            node: node(&mut dice),
            seconds: 400 + dice.below(250),
        })
    }

    /// One more trouble at this step, if there is one.
    fn more(seed: u64, world: World, step: u64) -> Option<Trouble> {
        /// Of so many steps in a hundred without another trouble, one has one of these.
        const CHANCE: u64 = 10;
        let mut dice = Dice::of(seed, "more trouble", step);
        dice.percent(CHANCE).then(|| {
            if world == World::Hard {
                Trouble::more_in_hard(&mut dice)
            } else {
                Trouble::more_in_rough(&mut dice)
            }
        })
    }

    /// What the world does while everything is deleted, if anything. Requests of users arrive all
    /// the same.
    pub(in crate::history) fn last(seed: u64, world: World) -> Option<Trouble> {
        /// Of so many histories in a hundred, one ends with a trouble.
        const CHANCE: u64 = 40;
        let mut dice = Dice::of(seed, "last trouble", 0);
        let is_troubled = world != World::Calm && dice.percent(CHANCE);
        is_troubled.then(|| match dice.below(100) {
            0..15 => Trouble::reboot(&mut dice),
            15..40 => Trouble::disk_full(&mut dice),
            40..60 => Trouble::NodeLeaves {
                node: node(&mut dice),
                seconds: time(&mut dice),
                returns: true,
            },
            draw => Trouble::of_answers(draw - 60, &mut dice),
        })
    }

    fn more_in_rough(dice: &mut Dice) -> Trouble {
        match dice.below(100) {
            0..14 => Trouble::reboot(dice),
            14..30 => Trouble::disk_full(dice),
            30..44 => Trouble::leave(dice),
            44..52 => Trouble::out_of_service(dice),
            draw => Trouble::of_answers(draw - 52, dice),
        }
    }

    fn more_in_hard(dice: &mut Dice) -> Trouble {
        match dice.below(100) {
            0..16 => Trouble::Backup,
            16..28 => Trouble::Restore,
            28..44 => Trouble::disk_full(dice),
            44..56 => Trouble::leave(dice),
            56..64 => Trouble::out_of_service(dice),
            64..76 => Trouble::file_damaged(dice),
            draw => Trouble::of_answers((draw - 76) * 2, dice),
        }
    }

    fn reboot(dice: &mut Dice) -> Trouble {
        Trouble::NodeReboots {
            node: node(dice),
            seconds: time(dice),
        }
    }

    fn disk_full(dice: &mut Dice) -> Trouble {
        Trouble::DiskFull {
            node: node(dice),
            seconds: time(dice),
        }
    }

    /// A node leaves, for a shorter or longer time than others wait before they give it up.
    fn leave(dice: &mut Dice) -> Trouble {
        let seconds = *dice.pick(&[20, 120, 400, 900, 2400]);
        Trouble::NodeLeaves {
            node: node(dice),
            seconds: seconds + dice.below(60),
            returns: !dice.percent(20),
        }
    }

    fn file_damaged(dice: &mut Dice) -> Trouble {
        Trouble::FileDamaged {
            node: node(dice),
            file: *dice.pick(&PoolFile::ALL),
            number: dice.below(1000),
            damage: *dice.pick(&Damage::ALL),
            seconds: time(dice),
        }
    }

    fn out_of_service(dice: &mut Dice) -> Trouble {
        Trouble::OutOfService {
            node: node(dice),
            seconds: 60 + dice.below(900),
        }
    }

    /// A trouble with single answers of the API server, for a number below 48.
    fn of_answers(draw: u64, dice: &mut Dice) -> Trouble {
        match draw {
            0..16 => Trouble::Refusals {
                code: *dice.pick(&CODES),
                percent: *dice.pick(&[5, 20, 60]),
                seconds: time(dice),
            },
            16..26 => Trouble::SlowAnswers {
                percent: *dice.pick(&[5, 30]),
                seconds: time(dice),
            },
            _ => Trouble::WatchesCut {
                forgotten: dice.percent(40),
            },
        }
    }
}

fn node(dice: &mut Dice) -> usize {
    *dice.pick(&[0, 1, 2])
}

fn replica(dice: &mut Dice) -> usize {
    *dice.pick(&[0, 1])
}

/// The dice of a trouble that comes once in every third history, if it comes at this step. It may come at
/// each of `number` steps from `first` on.
fn once(seed: u64, about: &str, (first, number): (u64, u64), step: u64) -> Option<Dice> {
    let mut dice = Dice::of(seed, about, 0);
    let is_due = dice.percent(33) && step == first + dice.below(number);
    is_due.then_some(dice)
}

/// How long something lasts, in seconds: from less than a retry to longer than a lease.
fn time(dice: &mut Dice) -> u64 {
    match dice.below(10) {
        0..4 => 1 + dice.below(5),
        4..8 => 5 + dice.below(60),
        _ => 60 + dice.below(600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greed_ends_in_a_long_history() {
        let mut greedy = 0;
        for seed in 0..100 {
            let all = (0..150).filter_map(|step| Trouble::at(seed, World::Rough, step));
            let of_greed: Vec<Trouble> = all.filter(Trouble::is_of_greed).collect();
            assert_eq!(of_greed.last(), Some(&Trouble::Moderation), "{seed}");
            greedy += usize::from(of_greed.len() > 1);
        }
        assert!((40..95).contains(&greedy), "{greedy}");
    }

    #[test]
    fn every_third_history_has_each_trouble_that_comes_once() {
        type Draw = fn(u64, u64) -> Option<Trouble>;
        let draws: [(Draw, &str); 4] = [
            (Trouble::farewell, "is deleted for good"),
            (Trouble::barred, "taint for"),
            (Trouble::leaderless, "all controller processes die"),
            (Trouble::full_for_long, "is full for"),
        ];
        for (draw, words) in draws {
            let of_seed = |seed: u64| (0..60).filter_map(move |step| draw(seed, step));
            let counts: Vec<usize> = (0..300).map(|seed| of_seed(seed).count()).collect();
            assert!(counts.iter().all(|count| *count <= 1), "{counts:?}");
            let all: usize = counts.iter().sum();
            assert!((70..130).contains(&all), "{words}: {all}");
            let mut sentences = (0..300).flat_map(of_seed).map(|one| one.to_string());
            assert!(
                sentences.any(|sentence| sentence.contains(words)),
                "{words}"
            );
        }
    }
}
