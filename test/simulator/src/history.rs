//! Histories: what users do, and when. A history follows from its seed alone, so steps can be left
//! out and the rest stays the same.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;

mod action;
mod cluster_option;
mod comparable;
mod expected;
mod foreign_step;
mod rows;
mod text;
pub(crate) mod trouble;
pub(crate) mod unusual;

pub(crate) use action::{Action, Source};
pub(crate) use cluster_option::ClusterOption;
use expected::Expected;
pub(crate) use foreign_step::ForeignStep;
use rows::{Absences, GroupsAndAdoptions, Rows};
use trouble::Trouble;

/// The kind of cluster that a history has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum World {
    /// One node, and nothing fails.
    #[default]
    Calm,
    /// Three nodes, and everything fails now and then.
    Rough,
    /// Three nodes. Drivers die at effects, nodes start again, lose their power and what was not
    /// synced, and records become unreadable.
    Hard,
}

impl World {
    /// The world of a seed, if no one chooses another: of three seeds, each has another.
    pub(crate) fn of(seed: u64) -> World {
        match seed % 3 {
            0 => World::Hard,
            1 => World::Calm,
            _ => World::Rough,
        }
    }

    /// The number of steps of a new history. Each history ends with more than two hours of rest. With
    /// three nodes, this rest takes most of the time that a history of 60 steps needs.
    pub(crate) fn steps(self) -> u64 {
        match self {
            World::Calm => 60,
            World::Rough | World::Hard => 240,
        }
    }
}

/// The time before a step, in milliseconds. With more steps, users rest less often, so that all
/// histories have about as many long rests.
fn pause(world: World, dice: &mut Dice) -> u64 {
    let [at_once, soon, later] = match world {
        World::Calm => [45, 75, 96],
        World::Rough | World::Hard => [50, 84, 98],
    };
    match dice.below(100) {
        draw if draw < at_once => dice.below(400),
        draw if draw < soon => 1000 + dice.below(20_000),
        draw if draw < later => 20_000 + dice.below(300_000),
        _ => 300_000 + dice.below(1_800_000),
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            World::Calm => "calm",
            World::Rough => "rough",
            World::Hard => "hard",
        })
    }
}

/// What users do in one simulated cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct History {
    /// The seed of everything but the steps.
    pub(crate) seed: u64,
    #[serde(default)]
    pub(crate) world: World,
    /// The disks of some nodes are nearly full.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) tight: bool,
    /// Volumes are attached before they are mounted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) attach: bool,
    /// What is switched on in its cluster that is off by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) options: Vec<ClusterOption>,
    /// Nodes have names that are too long for some labels.
    #[serde(default, rename = "longNames", skip_serializing_if = "is_false")]
    pub(crate) long_names: bool,
    /// The driver answers each call before its caller gives up, as on a machine at rest.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) prompt: bool,
    /// Copies that begin after the last step take as long as other work.
    #[serde(default, rename = "fastEnd", skip_serializing_if = "is_false")]
    pub(crate) fast_end: bool,
    /// What the world does while everything is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<Trouble>,
    /// What went wrong with it, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) about: String,
    pub(crate) steps: Vec<Step>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// One thing that a user or the world does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    /// The time since the step before, in milliseconds.
    pub(crate) wait: u64,
    #[serde(flatten)]
    pub(crate) action: Action,
}

impl History {
    /// The history of a seed.
    pub(crate) fn of(seed: u64, world: World, steps: u64) -> History {
        let mut expected = Expected::default();
        let mut groups = GroupsAndAdoptions::default();
        let options = ClusterOption::of(seed);
        let mut rows = Rows::by_chance(&options);
        let mut absences = Absences::default();
        let steps = (0..steps).map(|number| {
            let trouble = Trouble::at(seed, world, number);
            if let Some(trouble) = &trouble {
                absences.note(seed, number, trouble, &mut expected);
            } else if let Some(step) = absences.at(seed, number, &mut expected) {
                return step;
            }
            let mut rows = rows.iter_mut();
            if trouble.is_none()
                && let Some(step) = rows.find_map(|one| one.at(seed, number, &mut expected))
            {
                groups.note(&step.action);
                return step;
            }
            let mut dice = Dice::of(seed, "users", number);
            let wait = pause(world, &mut dice);
            let row = groups.step(&mut expected, wait, &mut Dice::of(seed, "rows", number));
            let step = row.unwrap_or_else(|| expected.step(wait, &mut dice));
            if let Some(trouble) = trouble {
                let action = Action::World { trouble };
                return Step { wait, action };
            }
            if let Some(step) = ForeignStep::at(seed, number) {
                let action = Action::Foreign { step };
                return Step { wait, action };
            }
            step
        });
        History {
            seed,
            world,
            tight: world != World::Calm && Dice::of(seed, "tight", 0).percent(25),
            attach: Dice::of(seed, "attach", 0).below(3) == 0,
            options,
            long_names: world != World::Calm && Dice::of(seed, "long names", 0).percent(50),
            prompt: false,
            fast_end: world != World::Calm && Dice::of(seed, "fast end", 0).percent(75),
            last: Trouble::last(seed, world),
            about: String::new(),
            steps: steps.collect(),
        }
    }

    /// What is special about its cluster, as sentences.
    pub(crate) fn traits(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.attach, "volumes are attached before they are mounted"),
            (self.tight, "the disks of some nodes are nearly full"),
            (self.long_names, "nodes have long names"),
            (self.fast_end, "copies are fast after the last step"),
        ];
        let true_ones = all.into_iter().filter(|(is_so, _)| *is_so);
        let options = self.options.iter().map(|option| option.about());
        true_ones.map(|(_, sentence)| sentence).chain(options)
    }

    /// Returns this history with the steps at these places alone, at the same times.
    pub(crate) fn only(&self, places: &[usize]) -> History {
        self.keeping(|place, _| places.contains(&place))
    }

    /// Returns this history with the steps for which `stays` is true, by their places. They come at
    /// the same times.
    fn keeping(&self, stays: impl Fn(usize, &Step) -> bool) -> History {
        let (mut steps, mut waited) = (Vec::new(), 0);
        for (place, step) in self.steps.iter().enumerate() {
            waited += step.wait;
            if stays(place, step) {
                steps.push(Step {
                    wait: std::mem::take(&mut waited),
                    action: step.action.clone(),
                });
            }
        }
        History {
            steps,
            ..self.clone()
        }
    }

    /// True if a greedy namespace has a part in it.
    pub(crate) fn is_greedy(&self) -> bool {
        self.steps.iter().any(|step| {
            matches!(
                step.action,
                Action::World {
                    trouble: Trouble::Greed { .. }
                }
            )
        })
    }

    /// Returns this history without troubles, but with the greedy namespace if `is_greedy`. All
    /// other steps come at the same times.
    pub(crate) fn without_troubles(&self, is_greedy: bool) -> History {
        self.keeping(|_, step| match &step.action {
            Action::World { trouble } => is_greedy && trouble.is_of_greed(),
            _ => true,
        })
    }
}

impl Step {
    pub(crate) fn wait(&self) -> Duration {
        Duration::from_millis(self.wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_history_is_that_of_its_seed() {
        let history = History::of(7, World::Rough, 300);
        let text = serde_json::to_string(&history).expect("JSON");
        let saved: History = serde_json::from_str(&text).expect("a history");
        let actions = |history: &History| -> Vec<(u64, Action)> {
            history
                .steps
                .iter()
                .map(|step| (step.wait, step.action.clone()))
                .collect()
        };
        assert_eq!(actions(&saved), actions(&History::of(7, World::Rough, 300)));
        assert_eq!(saved.world, World::Rough);
        let rest = |one: &History| {
            let options = one.options.clone();
            (one.tight, one.attach, options, one.last.clone())
        };
        assert_eq!(rest(&saved), rest(&history));
        assert_ne!(actions(&saved), actions(&History::of(8, World::Rough, 300)));
    }

    #[test]
    fn histories_differ_in_more_than_their_steps() {
        for (world, is_calm) in [(World::Calm, true), (World::Rough, false)] {
            let all: Vec<History> = (0..60).map(|seed| History::of(seed, world, 0)).collect();
            let attached = all.iter().filter(|one| one.attach).count();
            assert!((10..30).contains(&attached), "{attached}");
            assert_eq!(!all.iter().any(|one| one.tight), is_calm);
            assert_eq!(!all.iter().any(|one| one.last.is_some()), is_calm);
            assert_eq!(!all.iter().any(|one| one.fast_end), is_calm);
            assert!(all.iter().any(|one| !one.fast_end), "{world}");
        }
        let old = r#"{"seed":1,"steps":[]}"#;
        let old: History = serde_json::from_str(old).expect("a history");
        assert!(!old.tight && !old.attach && !old.long_names && !old.fast_end);
        assert!(old.last.is_none() && old.options.is_empty());
    }

    #[test]
    fn users_rest_less_often_where_histories_are_longer() {
        let rests = |world: World| {
            let pauses = (0..10_000).map(|number| pause(world, &mut Dice::of(1, "pause", number)));
            pauses.filter(|pause| *pause >= 320_000).count()
        };
        let (calm, rough) = (rests(World::Calm), rests(World::Rough));
        assert!((300..500).contains(&calm), "{calm}");
        assert!((130..270).contains(&rough), "{rough}");
        assert!(World::Rough.steps() > World::Calm.steps());
    }

    #[test]
    fn without_troubles_all_else_comes_at_the_same_time() {
        let times = |history: &History| -> Vec<(u64, Action)> {
            let mut at = 0;
            let all = history.steps.iter().map(|step| {
                at += step.wait;
                (at, step.action.clone())
            });
            all.collect()
        };
        let histories = (0..20).map(|seed| History::of(seed, World::Rough, 60));
        let greedy: Vec<History> = histories.filter(History::is_greedy).collect();
        assert!(!greedy.is_empty());
        for history in greedy {
            let mut all = times(&history);
            let beside = history.without_troubles(true);
            all.retain(|(_, action)| match action {
                Action::World { trouble } => trouble.is_of_greed(),
                _ => true,
            });
            assert_eq!(times(&beside), all);
            assert!(beside.is_greedy());
            let alone = history.without_troubles(false);
            all.retain(|(_, action)| !matches!(action, Action::World { .. }));
            assert_eq!(times(&alone), all);
        }
    }

    #[test]
    fn a_step_left_out_changes_no_other() {
        let history = History::of(7, World::Calm, 3);
        let shorter = history.only(&[0, 2]);
        let last = |history: &History| {
            let action = history.steps.last().map(|step| step.action.to_string());
            let at: u64 = history.steps.iter().map(|step| step.wait).sum();
            (action, at)
        };
        assert_eq!((shorter.steps.len(), last(&shorter)), (2, last(&history)));
    }
}
