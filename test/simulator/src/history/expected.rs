//! What the generator of histories expects to exist, and which steps follow from it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::dice::Dice;
use crate::history::{Action, Source, Step};

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
pub(super) const CLASSES: [&str; 10] = [
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
pub(super) struct Expected {
    pub(super) claims: BTreeMap<String, Claimed>,
    pub(super) pods: BTreeMap<String, Vec<String>>,
    pub(super) snapshots: BTreeMap<String, Option<Claimed>>,
    /// What is next of what a user does in a row.
    planned: VecDeque<Step>,
}

#[derive(Clone)]
pub(super) struct Claimed {
    pub(super) class: String,
    pub(super) size: String,
    pub(super) block: bool,
}

impl Claimed {
    /// A volume with a filesystem.
    pub(super) fn new(class: &str, size: &str) -> Claimed {
        Claimed {
            class: class.to_owned(),
            size: size.to_owned(),
            block: false,
        }
    }
}

/// One of these names, if there is one.
pub(super) fn key_of<'a>(
    names: impl Iterator<Item = &'a String>,
    dice: &mut Dice,
) -> Option<String> {
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| (*dice.pick(&names)).clone())
}

/// A name with this stem that is none of these, if one is free.
pub(super) fn name_for<'a>(
    names: impl Iterator<Item = &'a String>,
    stem: &str,
    dice: &mut Dice,
) -> String {
    let names: BTreeSet<_> = names.collect();
    let number = dice.below(6);
    let free = (0..).map(|n| format!("{stem}{}", (number + n) % 12));
    let mut free = free.take(12).filter(|name| !names.contains(name));
    free.next().unwrap_or_else(|| format!("{stem}{number}"))
}

impl Expected {
    /// Plans a claim that the generator expects from now on. Returns its name, and the step.
    pub(super) fn plan_claim(
        &mut self,
        class: &str,
        size: &str,
        source: Option<Source>,
        dice: &mut Dice,
    ) -> (String, Action) {
        let name = name_for(self.claims.keys(), "c", dice);
        self.claims.insert(name.clone(), Claimed::new(class, size));
        let action = Action::Claim {
            name: name.clone(),
            class: class.to_owned(),
            size: size.to_owned(),
            block: false,
            mode: "ReadWriteOnce".to_owned(),
            source,
            attributes: None,
        };
        (name, action)
    }

    /// Plans a claim for a raw block device, as [`Expected::plan_claim`].
    pub(super) fn plan_block_claim(
        &mut self,
        class: &str,
        size: &str,
        dice: &mut Dice,
    ) -> (String, Action) {
        let (name, mut make) = self.plan_claim(class, size, None, dice);
        if let Some(claimed) = self.claims.get_mut(&name) {
            claimed.block = true;
        }
        if let Action::Claim { block, .. } = &mut make {
            *block = true;
        }
        (name, make)
    }

    /// Plans a claim for a thick volume, as [`Expected::plan_claim`]: its class makes thin ones.
    pub(super) fn plan_thick_claim(
        &mut self,
        class: &str,
        size: &str,
        dice: &mut Dice,
    ) -> (String, Action) {
        let (name, mut make) = self.plan_claim(class, size, None, dice);
        if let Action::Claim { attributes, .. } = &mut make {
            *attributes = Some("thick".to_owned());
        }
        (name, make)
    }

    /// Plans a snapshot, as [`Expected::plan_claim`].
    pub(super) fn plan_snapshot(
        &mut self,
        claim: &str,
        class: &str,
        dice: &mut Dice,
    ) -> (String, Action) {
        let name = name_for(self.snapshots.keys(), "s", dice);
        let of = self.claims.get(claim).cloned();
        self.snapshots.insert(name.clone(), of);
        let action = Action::Snapshot {
            name: name.clone(),
            claim: claim.to_owned(),
            class: class.to_owned(),
        };
        (name, action)
    }

    /// Plans a pod with these claims, as [`Expected::plan_claim`].
    pub(super) fn plan_pod(&mut self, claims: Vec<String>, dice: &mut Dice) -> (String, Action) {
        let name = name_for(self.pods.keys(), "p", dice);
        self.pods.insert(name.clone(), claims.clone());
        (name.clone(), Action::Pod { name, claims })
    }

    /// What a step deletes is expected no longer. A new namespace is empty.
    pub(super) fn forget(&mut self, action: &Action) {
        match action {
            Action::DeleteNamespace | Action::Namespace => *self = Expected::default(),
            Action::DeleteClaim { name } => drop(self.claims.remove(name)),
            Action::DeletePod { name } => drop(self.pods.remove(name)),
            Action::DeleteSnapshot { name } | Action::Adopt { snapshot: name, .. } => {
                self.snapshots.remove(name);
            }
            _ => {}
        }
    }

    /// The next step: of what a user does in a row, or else a chance one after this wait.
    pub(super) fn step(&mut self, wait: u64, dice: &mut Dice) -> Step {
        if self.planned.is_empty() && dice.percent(15) {
            self.planned = self.row_of_copies(dice);
        }
        // Others come between the steps.
        if dice.percent(75)
            && let Some(step) = self.planned.pop_front()
        {
            self.forget(&step.action);
            return step;
        }
        Step {
            wait,
            action: self.next(dice),
        }
    }

    pub(super) fn next(&mut self, dice: &mut Dice) -> Action {
        loop {
            let action = match dice.below(100) {
                0..24 => Some(self.claim(dice)),
                24..38 => self.pod(dice),
                38..41 => Some(self.inline_pod(dice)),
                41..50 => self.delete_pod(dice),
                50..60 => self.snapshot(dice),
                60..63 => Some(self.preprovisioned(dice)),
                63..69 => self.delete_snapshot(dice),
                69..70 => key_of(self.snapshots.keys(), dice)
                    .map(|snapshot| Action::DeleteContent { snapshot }),
                70..78 => key_of(self.claims.keys(), dice).map(|name| Action::Grow {
                    name,
                    by: *dice.pick(&GROWTH),
                }),
                78..84 => key_of(self.claims.keys(), dice).map(|name| Action::TakeBack { name }),
                84..89 => key_of(self.claims.keys(), dice).map(|name| Action::Attributes {
                    name,
                    class: (*dice.pick(&ATTRIBUTES)).to_owned(),
                }),
                89..91 => key_of(self.claims.keys(), dice).map(|name| Action::Reclaim {
                    name,
                    policy: (*dice.pick(&["Retain", "Delete"])).to_owned(),
                }),
                91..92 => {
                    key_of(self.claims.keys(), dice).map(|name| Action::DeleteVolume { name })
                }
                _ => self.delete_claim(dice),
            };
            if let Some(action) = action {
                return action;
            }
        }
    }

    fn claim(&mut self, dice: &mut Dice) -> Action {
        let name = name_for(self.claims.keys(), "c", dice);
        let from = dice.below(100);
        let source = match from {
            0..25 => key_of(self.snapshots.keys(), dice).map(Source::Snapshot),
            25..37 => key_of(self.claims.keys(), dice).map(Source::Claim),
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
        let first = key_of(self.claims.keys(), dice)?;
        let mut claims = vec![first];
        if dice.percent(20) {
            claims.extend(key_of(self.claims.keys(), dice));
            claims.dedup();
        }
        Some(self.plan_pod(claims, dice).1)
    }

    fn inline_pod(&mut self, dice: &mut Dice) -> Action {
        let name = name_for(self.pods.keys(), "p", dice);
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
        let name = key_of(self.pods.keys(), dice)?;
        self.pods.remove(&name);
        Some(Action::DeletePod { name })
    }

    fn delete_claim(&mut self, dice: &mut Dice) -> Option<Action> {
        let name = key_of(self.claims.keys(), dice)?;
        self.claims.remove(&name);
        Some(Action::DeleteClaim { name })
    }

    fn snapshot(&mut self, dice: &mut Dice) -> Option<Action> {
        let claim = if dice.percent(95) {
            key_of(self.claims.keys(), dice)?
        } else {
            "none".to_owned()
        };
        let name = name_for(self.snapshots.keys(), "s", dice);
        self.snapshots
            .insert(name.clone(), self.claims.get(&claim).cloned());
        let class = (*dice.pick(&["deleted", "deleted", "kept", "none"])).to_owned();
        Some(Action::Snapshot { name, claim, class })
    }

    fn preprovisioned(&mut self, dice: &mut Dice) -> Action {
        let name = name_for(self.snapshots.keys(), "s", dice);
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
        let name = key_of(self.snapshots.keys(), dice)?;
        self.snapshots.remove(&name);
        Some(Action::DeleteSnapshot { name })
    }
}
