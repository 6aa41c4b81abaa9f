//! Rows of unusual steps: with classes, secrets, labels, mount options, the namespace, and claims
//! in unusual forms. They have draws of their own, so that those of other steps stay.

use crate::dice::Dice;
use crate::history::expected::{Claimed, Expected, key_of, name_for};
use crate::history::rows::{AT_ONCE, LATER, MODEST, SOON, after};
use crate::history::unusual::{ClaimField, ClassKind, Labelled, Unusual};
use crate::history::{Action, Source, Step};
use crate::secret::to_modify;

/// Times before a step, in milliseconds: longer than a namespace and its content mostly last.
const MUCH_LATER: (u64, u64) = (300_000, 300_000);

/// Sizes in forms that few claims use.
const FORMS: [&str; 7] = ["1500m", "1e9", "1.5Gi", "0.5Mi", "64e6", "12E6", "1E"];

/// Storage classes that go and come back, and what each can come back as. Whether they wait for a
/// pod never changes, since the names say it.
const STORAGE: [&str; 5] = ["ext4", "ext4-now", "btrfs-now", "kept-now", "xfs"];
const STORAGE_VERSIONS: [&str; 6] = ["own", "own", "xfs", "btrfs", "retain", "delete"];
/// Attributes classes that each volume can have.
const ATTRIBUTES: [&str; 3] = ["direct", "buffered", "streaming"];
const SNAPSHOT: [&str; 2] = ["deleted", "kept"];
const SNAPSHOT_VERSIONS: [&str; 3] = ["own", "retain", "delete"];

/// The label of the claims in groups of a class that goes.
const OWN_LABEL: &str = "c";

fn unusual(unusual: Unusual) -> Action {
    Action::Unusual { unusual }
}

pub(in crate::history) fn make_class(of: ClassKind, name: &str, version: &str) -> Action {
    let (name, version) = (name.to_owned(), version.to_owned());
    unusual(Unusual::MakeClass { of, name, version })
}

pub(in crate::history) fn remove_class(of: ClassKind, name: &str) -> Action {
    let name = name.to_owned();
    unusual(Unusual::RemoveClass { of, name })
}

fn secret(name: &str) -> Action {
    let name = name.to_owned();
    unusual(Unusual::Secret { name })
}

fn mount_options(claim: &str, option: Option<&str>) -> Action {
    let options = option.into_iter().map(str::to_owned).collect();
    let claim = claim.to_owned();
    unusual(Unusual::MountOptions { claim, options })
}

impl Expected {
    /// Steps in a row, seldom. Their objects count as expected from now on.
    pub(super) fn begin_row_of_classes_and_secrets(
        &mut self,
        dice: &mut Dice,
    ) -> Option<Vec<Step>> {
        /// At so many steps in a hundred, a row begins.
        const CHANCE: u64 = 4;
        if !dice.percent(CHANCE) {
            return None;
        }
        Some(match dice.below(14) {
            0 => ending_namespace(dice),
            1 | 2 => self.storage_class(dice),
            3 => self.attributes_class(dice),
            4 if dice.percent(40) => self.group_class(dice),
            4 => self.snapshot_class(dice),
            5 => self.mount_options(dice),
            6 | 10 => self.secrets(dice),
            7 => self.snapshot_secret(dice),
            8 => self.unusual_claims(dice),
            9 => self.named_volume(dice),
            11 | 12 => self.unlabelled_content(dice),
            _ => self.labels(dice),
        })
    }

    fn plan_unusual_claim(
        &mut self,
        (class, size): (Option<&str>, &str),
        field: Option<ClaimField>,
        dice: &mut Dice,
    ) -> (String, Action) {
        let name = name_for(self.claims.keys(), "c", dice);
        // What is restored from it names a class.
        let claimed = Claimed::new("ext4-now", size);
        self.claims.insert(name.clone(), claimed);
        let claim = Unusual::Claim {
            name: name.clone(),
            class: class.map(str::to_owned),
            size: size.to_owned(),
            field,
        };
        (name, unusual(claim))
    }

    /// Deletes a storage class, and makes it again, mostly as another one.
    fn storage_class(&mut self, dice: &mut Dice) -> Vec<Step> {
        let class = *dice.pick(&STORAGE);
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim(class, size, None, dice);
        let (_, pod) = self.plan_pod(vec![claim.clone()], dice);
        let (_, again) = self.plan_claim(class, size, Some(Source::Claim(claim)), dice);
        let version = *dice.pick(&STORAGE_VERSIONS);
        let remove = remove_class(ClassKind::Storage, class);
        let mut steps = vec![after(AT_ONCE, make, dice), after(AT_ONCE, pod, dice)];
        let at = usize::try_from(dice.below(3)).unwrap_or_default();
        steps.insert(at, after(AT_ONCE, remove, dice));
        let class = make_class(ClassKind::Storage, class, version);
        steps.push(after(SOON, again, dice));
        steps.push(after(LATER, class, dice));
        steps
    }

    /// Deletes an attributes class that a claim selects, and makes it again, maybe as another one.
    fn attributes_class(&mut self, dice: &mut Dice) -> Vec<Step> {
        let class = *dice.pick(&ATTRIBUTES);
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4-now", size, None, dice);
        let select = Action::Attributes {
            name: claim,
            class: class.to_owned(),
        };
        let mut steps = vec![after(AT_ONCE, make, dice), after(SOON, select, dice)];
        let at = usize::try_from(dice.below(3)).unwrap_or_default();
        let remove = remove_class(ClassKind::Attributes, class);
        steps.insert(at, after(AT_ONCE, remove, dice));
        let version = *dice.pick(&ATTRIBUTES);
        let class = make_class(ClassKind::Attributes, class, version);
        steps.push(after(LATER, class, dice));
        steps
    }

    /// Deletes a class of snapshots, and makes it again, maybe with another policy.
    fn snapshot_class(&mut self, dice: &mut Dice) -> Vec<Step> {
        let class = *dice.pick(&SNAPSHOT);
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4-now", size, None, dice);
        let (_, take) = self.plan_snapshot(&claim, class, dice);
        let mut steps = vec![after(AT_ONCE, make, dice), after(SOON, take, dice)];
        let at = usize::try_from(dice.below(3)).unwrap_or_default();
        let remove = remove_class(ClassKind::Snapshot, class);
        steps.insert(at, after(AT_ONCE, remove, dice));
        let version = *dice.pick(&SNAPSHOT_VERSIONS);
        let class = make_class(ClassKind::Snapshot, class, version);
        steps.push(after(LATER, class, dice));
        steps
    }

    /// Deletes a class of groups of snapshots, and makes it again, maybe with another policy.
    fn group_class(&mut self, dice: &mut Dice) -> Vec<Step> {
        let class = *dice.pick(&SNAPSHOT);
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4-now", size, None, dice);
        let label = Action::Label {
            name: claim,
            label: OWN_LABEL.to_owned(),
        };
        // Other rows seldom have groups of these names.
        let group = format!("g{}", 8 + dice.below(4));
        let take = Action::Group {
            name: group.clone(),
            label: OWN_LABEL.to_owned(),
            class: class.to_owned(),
        };
        let mut steps = vec![
            after(AT_ONCE, make, dice),
            after(AT_ONCE, label, dice),
            after(SOON, take, dice),
        ];
        let at = usize::try_from(dice.below(4)).unwrap_or_default();
        let remove = remove_class(ClassKind::Group, class);
        steps.insert(at, after(AT_ONCE, remove, dice));
        let version = *dice.pick(&SNAPSHOT_VERSIONS);
        let class = make_class(ClassKind::Group, class, version);
        steps.push(after(LATER, class, dice));
        if dice.percent(50) {
            steps.push(after(LATER, Action::DeleteGroup { name: group }, dice));
        }
        steps
    }

    /// Uses a class with mount options, of which the driver refuses some, and changes those of its
    /// volume.
    fn mount_options(&mut self, dice: &mut Dice) -> Vec<Step> {
        let version = *dice.pick(&["noatime", "noatime", "refused"]);
        let class = make_class(ClassKind::Storage, "options-now", version);
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("options-now", size, None, dice);
        let (pod, first) = self.plan_pod(vec![claim.clone()], dice);
        let option = *dice.pick(&[None, Some("noatime"), Some("errors=panic")]);
        let change = mount_options(&claim, option);
        let (_, second) = self.plan_pod(vec![claim.clone()], dice);
        let grow = Action::Grow {
            name: claim,
            by: 5_000_001,
        };
        vec![
            after(AT_ONCE, class, dice),
            after(AT_ONCE, make, dice),
            after(SOON, first, dice),
            after(LATER, change, dice),
            after(SOON, grow, dice),
            after(SOON, Action::DeletePod { name: pod }, dice),
            after(AT_ONCE, second, dice),
            after(LATER, remove_class(ClassKind::Storage, "options-now"), dice),
        ]
    }

    /// Uses a class that names secrets for calls. They come late, go, and come again.
    fn secrets(&mut self, dice: &mut Dice) -> Vec<Step> {
        let name = *dice.pick(&["secret-now", "secret"]);
        let class = make_class(ClassKind::Storage, name, "secret");
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim(name, size, None, dice);
        let (pod, first) = self.plan_pod(vec![claim.clone()], dice);
        let (_, second) = self.plan_pod(vec![claim.clone()], dice);
        let grow = Action::Grow {
            name: claim.clone(),
            by: 5_000_001,
        };
        let mut steps = vec![after(AT_ONCE, class, dice)];
        if dice.percent(70) {
            steps.push(after(AT_ONCE, secret(&claim), dice));
        }
        let delete = unusual(Unusual::DeleteSecret {
            name: claim.clone(),
        });
        steps.push(after(AT_ONCE, make, dice));
        steps.push(after(SOON, first, dice));
        if dice.percent(80) {
            steps.push(after(AT_ONCE, secret(&to_modify(&claim)), dice));
        }
        let select = Action::Attributes {
            name: claim.clone(),
            class: (*dice.pick(&ATTRIBUTES)).to_owned(),
        };
        steps.push(after(SOON, select, dice));
        steps.push(after(LATER, secret(&claim), dice));
        steps.push(after(SOON, delete, dice));
        steps.push(after(AT_ONCE, grow, dice));
        steps.push(after(AT_ONCE, Action::DeletePod { name: pod }, dice));
        steps.push(after(AT_ONCE, second, dice));
        if dice.percent(70) {
            steps.push(after(LATER, secret(&claim), dice));
        }
        if dice.percent(30) {
            let delete = Action::DeleteClaim { name: claim };
            steps.push(after(AT_ONCE, delete, dice));
        }
        steps
    }

    /// Takes a snapshot with a class that names a secret, which may come late or never.
    fn snapshot_secret(&mut self, dice: &mut Dice) -> Vec<Step> {
        let class = make_class(ClassKind::Snapshot, "secret", "secret");
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4-now", size, None, dice);
        let (snapshot, take) = self.plan_snapshot(&claim, "secret", dice);
        let mut steps = vec![
            after(AT_ONCE, class, dice),
            after(AT_ONCE, make, dice),
            after(SOON, take, dice),
        ];
        if dice.percent(80) {
            let at = usize::try_from(dice.below(4)).unwrap_or_default();
            steps.insert(at, after(AT_ONCE, secret(&snapshot), dice));
        }
        if dice.percent(50) {
            let delete = unusual(Unusual::DeleteSecret { name: snapshot });
            steps.push(after(LATER, delete, dice));
        }
        steps
    }

    /// Claims with sizes in unusual forms, without a class, and with fields for which no one makes a
    /// volume.
    fn unusual_claims(&mut self, dice: &mut Dice) -> Vec<Step> {
        let mut steps = Vec::new();
        if dice.percent(50) {
            let class = make_class(ClassKind::Storage, "default-now", "default");
            steps.push(after(AT_ONCE, class, dice));
        }
        let class = *dice.pick(&[Some("ext4-now"), Some("btrfs-now"), None]);
        let form = *dice.pick(&FORMS);
        let (first, make) = self.plan_unusual_claim((class, form), None, dice);
        steps.push(after(AT_ONCE, make, dice));
        let (_, copy) = self.plan_claim("ext4-now", form, Some(Source::Claim(first)), dice);
        steps.push(after(SOON, copy, dice));
        let (class, field) = match dice.below(4) {
            0 => (
                Some("ext4-now"),
                Some(ClaimField::Selector("none".to_owned())),
            ),
            1 => (
                Some("ext4-now"),
                Some(ClaimField::ForeignSource("elsewhere".to_owned())),
            ),
            2 => (Some(""), None),
            _ => (None, None),
        };
        let (waiting, make) = self.plan_unusual_claim((class, *dice.pick(&MODEST)), field, dice);
        steps.push(after(AT_ONCE, make, dice));
        if dice.percent(50) {
            let (_, pod) = self.plan_pod(vec![waiting.clone()], dice);
            steps.push(after(SOON, pod, dice));
        }
        if dice.percent(50) {
            // Claims without a class get it late.
            let class = make_class(ClassKind::Storage, "default-now", "default");
            steps.push(after(SOON, class, dice));
        }
        let remove = remove_class(ClassKind::Storage, "default-now");
        steps.push(after(LATER, remove, dice));
        steps
    }

    /// Frees a volume that a deleted claim has left, and claims it by its name. Or names a volume
    /// that another claim has.
    fn named_volume(&mut self, dice: &mut Dice) -> Vec<Step> {
        let (size, class) = (*dice.pick(&MODEST), "kept-now");
        let (first, make) = self.plan_claim(class, size, None, dice);
        let field = Some(ClaimField::VolumeOf(first.clone()));
        let (second, name) = self.plan_unusual_claim((Some(class), size), field, dice);
        let (_, pod) = self.plan_pod(vec![second.clone()], dice);
        let delete = Action::DeleteClaim {
            name: first.clone(),
        };
        let free = unusual(Unusual::FreeVolume { claim: first });
        let mut steps = vec![
            after(AT_ONCE, make, dice),
            after(LATER, delete, dice),
            after(LATER, free, dice),
        ];
        let at = 1 + usize::try_from(dice.below(3)).unwrap_or_default();
        steps.insert(at, after(SOON, name, dice));
        steps.push(after(SOON, pod, dice));
        steps
    }

    /// Takes the label away that says which node has a snapshot, and restores from the snapshot.
    fn unlabelled_content(&mut self, dice: &mut Dice) -> Vec<Step> {
        let size = *dice.pick(&MODEST);
        let (claim, make) = self.plan_claim("ext4-now", size, None, dice);
        let (snapshot, take) = self.plan_snapshot(&claim, "deleted", dice);
        let unlabel = unusual(Unusual::UnlabelContent {
            snapshot: snapshot.clone(),
        });
        let source = Some(Source::Snapshot(snapshot.clone()));
        let (_, restore) = self.plan_claim("ext4-now", size, source, dice);
        let mut steps = vec![
            after(AT_ONCE, make, dice),
            after(SOON, take, dice),
            after(LATER, unlabel, dice),
            after(SOON, restore, dice),
        ];
        if dice.percent(50) {
            let delete = Action::DeleteSnapshot { name: snapshot };
            steps.push(after(LATER, delete, dice));
        }
        steps
    }

    /// Labels a node and a claim, and takes the labels away.
    fn labels(&mut self, dice: &mut Dice) -> Vec<Step> {
        let node = (*dice.pick(&["n1", "n2", "n3"])).to_owned();
        let claim = key_of(self.claims.keys(), dice).unwrap_or_else(|| "none".to_owned());
        let mut steps = Vec::new();
        for value in [Some("a"), Some("b"), None] {
            for (of, name) in [(Labelled::Node, &node), (Labelled::Claim, &claim)] {
                let (name, value) = (name.clone(), value.map(str::to_owned));
                let label = unusual(Unusual::Label { of, name, value });
                steps.push(after(SOON, label, dice));
            }
        }
        steps
    }
}

/// Deletes the namespace, and makes it again. The first try may come before the old one is gone.
fn ending_namespace(dice: &mut Dice) -> Vec<Step> {
    vec![
        after(AT_ONCE, Action::DeleteNamespace, dice),
        after(LATER, Action::Namespace, dice),
        after(MUCH_LATER, Action::Namespace, dice),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::history::rows::Rows;
    use crate::history::{History, World};

    #[test]
    fn unusual_steps_are_seldom_and_of_all_kinds() {
        let (mut kinds, mut classes) = (BTreeSet::new(), BTreeSet::new());
        let (mut unusual, mut all) = (0, 0);
        for seed in 0..60 {
            for Step { action, .. } in History::of(seed, World::Calm, 60).steps {
                all += 1;
                if let Action::Unusual {
                    unusual: Unusual::RemoveClass { of, .. },
                } = &action
                {
                    classes.insert(of.to_string());
                }
                let kind = serde_json::to_value(&action).expect("JSON");
                let kind = match &action {
                    Action::Unusual { .. } => kind["unusual"]["kind"].to_string(),
                    Action::DeleteNamespace | Action::Namespace => kind["do"].to_string(),
                    _ => continue,
                };
                unusual += 1;
                kinds.insert(kind);
            }
        }
        assert_eq!(kinds.len(), 16, "{kinds:?}");
        let expected = ["attributes", "group snapshot", "snapshot", "storage"];
        assert_eq!(classes, BTreeSet::from(expected.map(str::to_owned)));
        assert!(unusual * 5 < all, "{unusual} of {all}");
    }

    #[test]
    fn a_new_namespace_is_empty() {
        let mut expected = Expected::default();
        let mut dice = Dice::of(1, "test", 0);
        expected.plan_claim("ext4-now", "1", None, &mut dice);
        let mut rows = Rows::new("rare", Expected::begin_row_of_classes_and_secrets);
        rows.planned = ending_namespace(&mut dice).into();
        let numbers = 0..20;
        let first = numbers
            .map(|number| rows.at(1, number, &mut expected))
            .find_map(|step| step.map(|step| step.action));
        assert_eq!(first, Some(Action::DeleteNamespace));
        assert!(expected.claims.is_empty());
    }
}
