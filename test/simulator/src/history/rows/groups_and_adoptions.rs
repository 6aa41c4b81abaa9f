//! Rows of steps with groups of snapshots, and with data that users keep and take over. They have
//! draws of their own, so that those of other steps stay.

use std::collections::{BTreeSet, VecDeque};

use crate::dice::Dice;
use crate::history::expected::{Claimed, Expected, key_of, name_for};
use crate::history::rows::{AT_ONCE, LATER, MODEST, SOON, after};
use crate::history::unusual::Unusual;
use crate::history::{Action, Source, Step};

/// Of so many steps in a hundred, one begins a row.
const BEGINS: u64 = 4;
/// Of so many steps in a hundred, one is of a row that has begun.
const GOES_ON: u64 = 50;
/// Of so many steps in a hundred, one is a single one about a group or kept data.
const SINGLE: u64 = 3;

const LABELS: [&str; 2] = ["a", "b"];
/// One does not exist, and one is another driver's.
const GROUP_CLASSES: [&str; 8] = [
    "deleted", "deleted", "deleted", "deleted", "kept", "kept", "none", "foreign",
];
const POLICIES: [&str; 2] = ["Delete", "Retain"];
const KEPT: [&str; 2] = ["kept", "kept-now"];

/// The rows of steps, and the groups that they expect to exist.
#[derive(Default)]
pub(in crate::history) struct GroupsAndAdoptions {
    planned: VecDeque<Step>,
    groups: BTreeSet<String>,
}

fn one_of(from: &[&str], dice: &mut Dice) -> String {
    (*dice.pick(from)).to_owned()
}

impl GroupsAndAdoptions {
    /// The next step of a row, or a single one after this wait. `None` leaves the step to others.
    pub(in crate::history) fn step(
        &mut self,
        expected: &mut Expected,
        wait: u64,
        dice: &mut Dice,
    ) -> Option<Step> {
        if self.planned.is_empty() && dice.percent(BEGINS) {
            self.planned = self.row(expected, dice).into();
        }
        if dice.percent(GOES_ON)
            && let Some(step) = self.planned.pop_front()
        {
            self.forget(expected, &step.action);
            return Some(step);
        }
        if !dice.percent(SINGLE) {
            return None;
        }
        let action = self.single(expected, dice)?;
        self.forget(expected, &action);
        Some(Step { wait, action })
    }

    /// Notes what is done beside rows: without its namespace, nothing is expected, and nothing goes
    /// on.
    pub(in crate::history) fn note(&mut self, action: &Action) {
        if matches!(action, Action::DeleteNamespace | Action::Namespace) {
            *self = GroupsAndAdoptions::default();
        }
    }

    /// What a step deletes is expected no longer.
    fn forget(&mut self, expected: &mut Expected, action: &Action) {
        expected.forget(action);
        if let Action::DeleteGroup { name } = action {
            self.groups.remove(name);
        }
    }

    fn row(&mut self, expected: &mut Expected, dice: &mut Dice) -> Vec<Step> {
        match dice.below(4) {
            0 | 1 => self.group_of_claims(expected, dice),
            2 => adopted_snapshot(expected, dice),
            _ => adopted_volume(expected, dice),
        }
    }

    fn single(&mut self, expected: &mut Expected, dice: &mut Dice) -> Option<Action> {
        let label = one_of(&LABELS, dice);
        match dice.below(10) {
            0..3 => key_of(expected.claims.keys(), dice).map(|name| Action::Label { name, label }),
            3..5 if dice.percent(30) => Some(self.plan_existing_group(dice)),
            3..5 => Some(self.plan_group(label, dice).1),
            5..7 => key_of(self.groups.iter(), dice).map(|name| Action::DeleteGroup { name }),
            7 => key_of(self.groups.iter(), dice).map(|group| Action::DeleteGroupContent { group }),
            8 => key_of(self.groups.iter(), dice).map(|group| Action::DeleteMember {
                group,
                number: dice.below(3),
            }),
            _ => {
                let snapshot = key_of(expected.snapshots.keys(), dice)?;
                Some(plan_adoption(expected, snapshot, dice).1)
            }
        }
    }

    fn plan_group(&mut self, label: String, dice: &mut Dice) -> (String, Action) {
        let name = name_for(self.groups.iter(), "g", dice);
        let class = one_of(&GROUP_CLASSES, dice);
        self.groups.insert(name.clone());
        let action = Action::Group {
            name: name.clone(),
            label,
            class,
        };
        (name, action)
    }

    /// Plans a group and a content for data that does not exist.
    fn plan_existing_group(&mut self, dice: &mut Dice) -> Action {
        let name = name_for(self.groups.iter(), "g", dice);
        self.groups.insert(name.clone());
        Action::PreprovisionedGroup {
            name,
            handle: one_of(&["nonsense", "missing"], dice),
            policy: one_of(&POLICIES, dice),
        }
    }

    /// Takes a group of two or three claims, restores a member, and deletes something meanwhile. Before
    /// that, a member may lose its owner. Without a pod that uses all of the claims, they may be on
    /// several nodes. One of them may be a block device: with a pod that uses it, there can be no group.
    fn group_of_claims(&mut self, expected: &mut Expected, dice: &mut Dice) -> Vec<Step> {
        let (label, size) = (one_of(&LABELS, dice), *dice.pick(&MODEST));
        let class = *dice.pick(&["ext4", "ext4", "ext4-now"]);
        let (mut steps, mut claims) = (Vec::new(), Vec::new());
        let has_raw = dice.percent(30);
        for number in 0..2 + dice.below(2) {
            let (name, make) = if has_raw && number == 0 {
                expected.plan_block_claim(class, size, dice)
            } else {
                expected.plan_claim(class, size, None, dice)
            };
            steps.push(after(AT_ONCE, make, dice));
            claims.push(name.clone());
            let label = label.clone();
            steps.push(after(AT_ONCE, Action::Label { name, label }, dice));
        }
        if dice.percent(80) {
            let (_, pod) = expected.plan_pod(claims.clone(), dice);
            steps.push(after(AT_ONCE, pod, dice));
        }
        let (group, take) = self.plan_group(label, dice);
        steps.push(after(LATER, take, dice));
        let is_disowned = dice.percent(80);
        if is_disowned {
            let unusual = Unusual::DisownMember {
                group: group.clone(),
                number: dice.below(3),
            };
            steps.push(after(LATER, Action::Unusual { unusual }, dice));
        }
        let restore = restore_member(expected, &group, (class, size), dice);
        steps.push(after(LATER, restore, dice));
        // Most groups with such a member stay, or it would not matter what becomes of it.
        let is_kept = is_disowned && dice.percent(70);
        let meanwhile = match dice.below(5) {
            _ if is_kept => None,
            0 => Some(Action::DeleteMember {
                group: group.clone(),
                number: dice.below(3),
            }),
            1 => claims.pop().map(|name| Action::DeleteClaim { name }),
            2 => Some(Action::DeleteGroup {
                name: group.clone(),
            }),
            3 => Some(Action::DeleteGroupContent {
                group: group.clone(),
            }),
            _ => None,
        };
        steps.extend(meanwhile.map(|action| after(AT_ONCE, action, dice)));
        if !is_kept && dice.percent(60) {
            steps.push(after(LATER, Action::DeleteGroup { name: group }, dice));
        }
        steps
    }
}

fn restore_member(
    expected: &mut Expected,
    group: &str,
    (class, size): (&str, &str),
    dice: &mut Dice,
) -> Action {
    let name = name_for(expected.claims.keys(), "c", dice);
    let claimed = Claimed::new(class, size);
    expected.claims.insert(name.clone(), claimed);
    Action::RestoreMember {
        name,
        group: group.to_owned(),
        number: dice.below(3),
        class: class.to_owned(),
        size: size.to_owned(),
    }
}

/// Plans that a snapshot is given up, and its data taken over by hand. Returns the name of the new
/// snapshot, and the step.
pub(super) fn plan_adoption(
    expected: &mut Expected,
    snapshot: String,
    dice: &mut Dice,
) -> (String, Action) {
    let name = name_for(expected.snapshots.keys(), "s", dice);
    let of = expected.snapshots.get(&snapshot).cloned().flatten();
    expected.snapshots.insert(name.clone(), of);
    let action = Action::Adopt {
        name: name.clone(),
        snapshot,
        policy: one_of(&POLICIES, dice),
    };
    (name, action)
}

/// Takes a snapshot, takes its data over as another one, restores from that, and deletes it.
fn adopted_snapshot(expected: &mut Expected, dice: &mut Dice) -> Vec<Step> {
    let size = *dice.pick(&MODEST);
    let (claim, make) = expected.plan_claim("ext4-now", size, None, dice);
    let class = *dice.pick(&["deleted", "kept"]);
    let (snapshot, take) = expected.plan_snapshot(&claim, class, dice);
    let (name, adopt) = plan_adoption(expected, snapshot, dice);
    let source = Some(Source::Snapshot(name.clone()));
    let (_, restore) = expected.plan_claim("ext4-now", size, source, dice);
    let mut steps = vec![
        after(AT_ONCE, make, dice),
        after(SOON, take, dice),
        after(LATER, adopt, dice),
        after(SOON, restore, dice),
    ];
    if dice.percent(60) {
        steps.push(after(LATER, Action::DeleteSnapshot { name }, dice));
    }
    steps
}

/// Uses a volume that is to be kept, gives its claim up, and uses the volume again with another
/// volume object and claim.
fn adopted_volume(expected: &mut Expected, dice: &mut Dice) -> Vec<Step> {
    let (class, size) = (*dice.pick(&KEPT), *dice.pick(&MODEST));
    let (claim, make) = expected.plan_claim(class, size, None, dice);
    let (pod, first) = expected.plan_pod(vec![claim.clone()], dice);
    let name = name_for(expected.claims.keys(), "c", dice);
    let claimed = Claimed::new(class, size);
    expected.claims.insert(name.clone(), claimed);
    let (second_pod, second) = expected.plan_pod(vec![name.clone()], dice);
    let mut steps = vec![
        after(AT_ONCE, make, dice),
        after(SOON, first, dice),
        after(LATER, Action::DeletePod { name: pod }, dice),
    ];
    // Data that is kept anyway shows nothing.
    let elsewhere = dice.percent(50);
    let policies: &[&str] = if elsewhere { &["Delete"] } else { &POLICIES };
    let adopt = Action::AdoptVolume {
        name: name.clone(),
        claim: claim.clone(),
        policy: one_of(policies, dice),
        elsewhere,
    };
    steps.push(after(AT_ONCE, Action::DeleteClaim { name: claim }, dice));
    steps.push(after(LATER, adopt, dice));
    steps.push(after(SOON, second, dice));
    if dice.percent(40) {
        steps.push(after(LATER, Action::DeletePod { name: second_pod }, dice));
        steps.push(after(AT_ONCE, Action::DeleteClaim { name }, dice));
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::GroupsAndAdoptions;
    use crate::history::{Action, History, Step, World};

    #[test]
    fn a_row_ends_with_its_namespace() {
        let mut rows = GroupsAndAdoptions::default();
        rows.groups.insert("g1".to_owned());
        let (wait, action) = (0, Action::Namespace);
        rows.planned.push_back(Step { wait, action });
        for (action, left) in [
            (Action::DeleteGroup { name: "g1".into() }, 1),
            (Action::DeleteNamespace, 0),
        ] {
            rows.note(&action);
            assert_eq!((rows.groups.len(), rows.planned.len()), (left, left));
        }
    }

    #[test]
    fn histories_have_groups_and_take_data_over() {
        let mut kinds = BTreeSet::new();
        let (mut own, mut all) = (0, 0);
        for history in (0..60).map(|seed| History::of(seed, World::Calm, 60)) {
            for step in &history.steps {
                let text = serde_json::to_value(&step.action).expect("JSON");
                let again: Action = serde_json::from_value(text.clone()).expect("an action");
                assert_eq!(again, step.action);
                let kind = text["do"].as_str().expect("a kind").to_owned();
                own += usize::from(kind.contains("roup") || kind.starts_with("adopt"));
                all += 1;
                kinds.insert(kind);
            }
        }
        for kind in [
            "label",
            "group",
            "deleteGroup",
            "preprovisionedGroup",
            "deleteGroupContent",
            "deleteMember",
            "restoreMember",
            "adopt",
            "adoptVolume",
        ] {
            assert!(kinds.contains(kind), "{kind}: {kinds:?}");
        }
        // What is usual stays usual.
        assert!(own * 10 < all, "{own} of {all}");
    }
}
