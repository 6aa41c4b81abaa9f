//! Histories: what users do, and when. A history follows from its seed alone, so steps can be left
//! out and the rest stays the same.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;

mod comparable;
mod habits;
mod text;
pub(crate) mod trouble;

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
    /// What went wrong with it, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) about: String,
    pub(crate) steps: Vec<Step>,
}

/// One thing that a user or the world does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    /// The time since the step before, in milliseconds.
    pub(crate) wait: u64,
    #[serde(flatten)]
    pub(crate) action: Action,
}

/// What a user or the world can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub(crate) enum Action {
    /// Creates a claim, maybe with a source.
    #[serde(rename_all = "camelCase")]
    Claim {
        name: String,
        class: String,
        size: String,
        #[serde(default, skip_serializing_if = "is_false")]
        block: bool,
        mode: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<Source>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attributes: Option<String>,
    },
    /// Deletes a claim.
    DeleteClaim { name: String },
    /// Creates a pod that uses claims.
    Pod { name: String, claims: Vec<String> },
    /// Creates a pod with an inline volume.
    InlinePod { name: String, size: String },
    /// Creates a pod with a claim that belongs to it.
    EphemeralPod {
        name: String,
        class: String,
        size: String,
    },
    /// Deletes a pod.
    DeletePod { name: String },
    /// Takes a snapshot of a claim.
    Snapshot {
        name: String,
        claim: String,
        class: String,
    },
    /// Creates a snapshot and a content for data that may not exist.
    #[serde(rename_all = "camelCase")]
    Preprovisioned {
        name: String,
        handle: String,
        policy: String,
    },
    /// Deletes a snapshot.
    DeleteSnapshot { name: String },
    /// Deletes the content of a snapshot.
    DeleteContent { snapshot: String },
    /// Requests more of a claim, in bytes.
    Grow { name: String, by: u64 },
    /// Requests only a little more than the claim has.
    TakeBack { name: String },
    /// Selects a class of attributes.
    Attributes { name: String, class: String },
    /// Changes what happens to the data of a claim's volume.
    Reclaim { name: String, policy: String },
    /// Deletes the volume object of a claim.
    DeleteVolume { name: String },
    /// Creates a class of volumes again.
    Class { name: String },
    /// Deletes a class of volumes.
    DeleteClass { name: String },
    /// Creates the users' namespace again.
    Namespace,
    /// Deletes the users' namespace, with all that is in it.
    DeleteNamespace,
    /// The world does something.
    World { trouble: Trouble },
}

/// Where the data of a new claim comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Source {
    Snapshot(String),
    Claim(String),
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// Most of them leave room in a pool for others.
const SIZES: [&str; 14] = [
    "1",
    "1Mi",
    "10Mi",
    "10Mi",
    "50M",
    "64Mi",
    "100M",
    "100M",
    "333333333",
    "300Mi",
    "512Mi",
    "900M",
    "1500M",
    "1Ti",
];
/// Thick volumes take memory.
const SMALL: [&str; 4] = ["1", "4Mi", "5000001", "16Mi"];
const GROWTH: [u64; 7] = [1, 1 << 20, 5_000_001, 64 << 20, 512 << 20, 4 << 30, 1 << 40];
const CLASSES: [&str; 10] = [
    "ext4",
    "ext4",
    "ext4-now",
    "ext4-now",
    "xfs",
    "btrfs-now",
    "thick-now",
    "kept-now",
    "kept",
    "wrong-now",
];
const ATTRIBUTES: [&str; 5] = ["direct", "buffered", "streaming", "thick", "wrong"];
const MODES: [&str; 6] = [
    "ReadWriteOnce",
    "ReadWriteOnce",
    "ReadWriteOnce",
    "ReadWriteOncePod",
    "ReadWriteMany",
    "ReadOnlyMany",
];

/// What the generator expects to exist, so that most steps have an object.
#[derive(Clone, Default)]
struct Expected {
    claims: BTreeMap<String, Claimed>,
    pods: BTreeMap<String, Vec<String>>,
    snapshots: BTreeMap<String, Option<Claimed>>,
    /// What is next of what a user does in a row.
    planned: VecDeque<Step>,
}

#[derive(Clone)]
struct Claimed {
    class: String,
    size: String,
    block: bool,
}

impl History {
    /// The history of a seed.
    pub(crate) fn of(seed: u64, world: World, steps: u64) -> History {
        let mut expected = Expected::default();
        let steps = (0..steps).map(|number| {
            let mut dice = Dice::of(seed, "users", number);
            let wait = match dice.below(100) {
                0..45 => dice.below(400),
                45..75 => 1000 + dice.below(20_000),
                75..96 => 20_000 + dice.below(300_000),
                _ => 300_000 + dice.below(1_800_000),
            };
            let step = expected.step(wait, &mut dice);
            if let Some(trouble) = Trouble::at(seed, world, number) {
                let action = Action::World { trouble };
                return Step { wait, action };
            }
            step
        });
        History {
            seed,
            world,
            about: String::new(),
            steps: steps.collect(),
        }
    }

    /// Returns this history with the steps at these places alone.
    pub(crate) fn only(&self, places: &[usize]) -> History {
        let steps = places.iter().filter_map(|place| self.steps.get(*place));
        History {
            steps: steps.cloned().collect(),
            ..self.clone()
        }
    }
}

impl Step {
    pub(crate) fn wait(&self) -> Duration {
        Duration::from_millis(self.wait)
    }
}

fn key_of<T>(map: &BTreeMap<String, T>, dice: &mut Dice) -> Option<String> {
    let keys: Vec<_> = map.keys().collect();
    (!keys.is_empty()).then(|| (*dice.pick(&keys)).clone())
}

fn name_for<T>(map: &BTreeMap<String, T>, stem: &str, dice: &mut Dice) -> String {
    let number = dice.below(6);
    let free = (0..).map(|n| format!("{stem}{}", (number + n) % 12));
    let mut free = free.take(12).filter(|name| !map.contains_key(name));
    free.next().unwrap_or_else(|| format!("{stem}{number}"))
}

impl Expected {
    /// The next step: of what a user does in a row, or else a chance one after this wait.
    fn step(&mut self, wait: u64, dice: &mut Dice) -> Step {
        if self.planned.is_empty() && dice.percent(15) {
            self.planned = self.habit(dice);
        }
        // Others come between the steps.
        if dice.percent(75)
            && let Some(step) = self.planned.pop_front()
        {
            match &step.action {
                Action::DeleteClaim { name } => drop(self.claims.remove(name)),
                Action::DeleteSnapshot { name } => drop(self.snapshots.remove(name)),
                _ => {}
            }
            return step;
        }
        Step {
            wait,
            action: self.next(dice),
        }
    }

    fn next(&mut self, dice: &mut Dice) -> Action {
        loop {
            let action = match dice.below(100) {
                0..24 => Some(self.claim(dice)),
                24..38 => self.pod(dice),
                38..41 => Some(self.inline_pod(dice)),
                41..50 => self.delete_pod(dice),
                50..60 => self.snapshot(dice),
                60..63 => Some(self.preprovisioned(dice)),
                63..69 => self.delete_snapshot(dice),
                69..70 => {
                    key_of(&self.snapshots, dice).map(|snapshot| Action::DeleteContent { snapshot })
                }
                70..78 => key_of(&self.claims, dice).map(|name| Action::Grow {
                    name,
                    by: *dice.pick(&GROWTH),
                }),
                78..84 => key_of(&self.claims, dice).map(|name| Action::TakeBack { name }),
                84..89 => key_of(&self.claims, dice).map(|name| Action::Attributes {
                    name,
                    class: (*dice.pick(&ATTRIBUTES)).to_owned(),
                }),
                89..91 => key_of(&self.claims, dice).map(|name| Action::Reclaim {
                    name,
                    policy: (*dice.pick(&["Retain", "Delete"])).to_owned(),
                }),
                91..92 => key_of(&self.claims, dice).map(|name| Action::DeleteVolume { name }),
                _ => self.delete_claim(dice),
            };
            if let Some(action) = action {
                return action;
            }
        }
    }

    fn claim(&mut self, dice: &mut Dice) -> Action {
        let name = name_for(&self.claims, "c", dice);
        let from = dice.below(100);
        let source = match from {
            0..25 => key_of(&self.snapshots, dice).map(Source::Snapshot),
            25..37 => key_of(&self.claims, dice).map(Source::Claim),
            37..39 => Some(Source::Snapshot("none".to_owned())),
            _ => None,
        };
        let of = match &source {
            Some(Source::Snapshot(name)) => self.snapshots.get(name).cloned().flatten(),
            Some(Source::Claim(name)) => self.claims.get(name).cloned(),
            None => None,
        };
        let mut class = (*dice.pick(&CLASSES)).to_owned();
        let sizes: &[&str] = if class.starts_with("thick") {
            &SMALL
        } else {
            &SIZES
        };
        let mut size = (*dice.pick(sizes)).to_owned();
        let mut block = dice.percent(15);
        if let Some(of) = of {
            // Most restores are like their source.
            if dice.percent(75) {
                size = of.size;
            }
            if dice.percent(70) {
                class = of.class;
            }
            if dice.percent(95) {
                block = of.block;
            }
        }
        let attributes = dice
            .percent(10)
            .then(|| (*dice.pick(&ATTRIBUTES)).to_owned());
        let claimed = Claimed {
            class: class.clone(),
            size: size.clone(),
            block,
        };
        self.claims.insert(name.clone(), claimed);
        let mode = (*dice.pick(&MODES)).to_owned();
        Action::Claim {
            name,
            class,
            size,
            block,
            mode,
            source,
            attributes,
        }
    }

    fn pod(&mut self, dice: &mut Dice) -> Option<Action> {
        let first = key_of(&self.claims, dice)?;
        let mut claims = vec![first];
        if dice.percent(20) {
            claims.extend(key_of(&self.claims, dice));
            claims.dedup();
        }
        let name = name_for(&self.pods, "p", dice);
        self.pods.insert(name.clone(), claims.clone());
        Some(Action::Pod { name, claims })
    }

    fn inline_pod(&mut self, dice: &mut Dice) -> Action {
        let name = name_for(&self.pods, "p", dice);
        self.pods.insert(name.clone(), Vec::new());
        let size = (*dice.pick(&["10Mi", "1", "64Mi", "2Gi"])).to_owned();
        if dice.percent(60) {
            Action::InlinePod { name, size }
        } else {
            Action::EphemeralPod {
                name,
                class: "ext4".to_owned(),
                size,
            }
        }
    }

    fn delete_pod(&mut self, dice: &mut Dice) -> Option<Action> {
        let name = key_of(&self.pods, dice)?;
        self.pods.remove(&name);
        Some(Action::DeletePod { name })
    }

    fn delete_claim(&mut self, dice: &mut Dice) -> Option<Action> {
        let name = key_of(&self.claims, dice)?;
        self.claims.remove(&name);
        Some(Action::DeleteClaim { name })
    }

    fn snapshot(&mut self, dice: &mut Dice) -> Option<Action> {
        let claim = if dice.percent(95) {
            key_of(&self.claims, dice)?
        } else {
            "none".to_owned()
        };
        let name = name_for(&self.snapshots, "s", dice);
        self.snapshots
            .insert(name.clone(), self.claims.get(&claim).cloned());
        let class = (*dice.pick(&["deleted", "deleted", "kept", "none"])).to_owned();
        Some(Action::Snapshot { name, claim, class })
    }

    fn preprovisioned(&mut self, dice: &mut Dice) -> Action {
        let name = name_for(&self.snapshots, "s", dice);
        self.snapshots.insert(name.clone(), None);
        let handles = ["nonsense", "", "snap-pool-0", "missing"];
        let handle = (*dice.pick(&handles)).to_owned();
        let policy = (*dice.pick(&["Delete", "Retain"])).to_owned();
        Action::Preprovisioned {
            name,
            handle,
            policy,
        }
    }

    fn delete_snapshot(&mut self, dice: &mut Dice) -> Option<Action> {
        let name = key_of(&self.snapshots, dice)?;
        self.snapshots.remove(&name);
        Some(Action::DeleteSnapshot { name })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Claim {
                name,
                class,
                size,
                block,
                mode,
                source,
                attributes,
            } => {
                write!(f, "claim {name}: {size} of class {class}, {mode}")?;
                if *block {
                    write!(f, ", as a block device")?;
                }
                match source {
                    Some(Source::Snapshot(source)) => write!(f, ", from snapshot {source}")?,
                    Some(Source::Claim(source)) => write!(f, ", from claim {source}")?,
                    None => {}
                }
                attributes
                    .iter()
                    .try_for_each(|class| write!(f, ", attributes {class}"))
            }
            Action::DeleteClaim { name } => write!(f, "delete claim {name}"),
            Action::Pod { name, claims } => write!(f, "pod {name} with {}", claims.join(" and ")),
            Action::InlinePod { name, size } => {
                write!(f, "pod {name} with an inline volume of {size}")
            }
            Action::EphemeralPod { name, class, size } => {
                write!(
                    f,
                    "pod {name} with a claim of its own: {size} of class {class}"
                )
            }
            Action::DeletePod { name } => write!(f, "delete pod {name}"),
            Action::Snapshot { name, claim, class } => {
                write!(f, "snapshot {name} of claim {claim}, class {class}")
            }
            Action::Preprovisioned {
                name,
                handle,
                policy,
            } => {
                write!(
                    f,
                    "snapshot {name} of the existing data {handle:?}, {policy}"
                )
            }
            Action::DeleteSnapshot { name } => write!(f, "delete snapshot {name}"),
            Action::DeleteContent { snapshot } => {
                write!(f, "delete the content of snapshot {snapshot}")
            }
            Action::Grow { name, by } => write!(f, "grow claim {name} by {by} bytes"),
            Action::TakeBack { name } => {
                write!(f, "take the growth of claim {name} back as far as possible")
            }
            Action::Attributes { name, class } => {
                write!(f, "give claim {name} the attributes {class}")
            }
            Action::Reclaim { name, policy } => {
                write!(f, "set the volume of claim {name} to {policy}")
            }
            Action::DeleteVolume { name } => write!(f, "delete the volume object of claim {name}"),
            Action::Class { name } => write!(f, "create class {name} again"),
            Action::DeleteClass { name } => write!(f, "delete class {name}"),
            Action::Namespace => f.write_str("create the namespace again"),
            Action::DeleteNamespace => f.write_str("delete the namespace"),
            Action::World { trouble } => fmt::Display::fmt(trouble, f),
        }
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
        assert_ne!(actions(&saved), actions(&History::of(8, World::Rough, 300)));
    }

    #[test]
    fn a_step_left_out_changes_no_other() {
        let history = History::of(7, World::Calm, 3);
        let shorter = history.only(&[0, 2]);
        let third = |history: &History| history.steps.last().map(|step| step.action.to_string());
        assert_eq!((shorter.steps.len(), third(&shorter)), (2, third(&history)));
    }
}
