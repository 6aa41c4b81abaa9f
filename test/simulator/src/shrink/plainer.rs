//! Steps in a plainer form, and a plainer cluster.

use crate::history::trouble::Trouble;
use crate::history::{Action, History, Step};

/// A class of volumes that need no pod.
const CLASS: &str = "ext4-now";
/// Sizes that stand for several small ones. Of the first, a pool has room for two volumes and not for
/// three. Of the second, so has one that promises more than its disk has.
const LARGE: &str = "300Mi";
const HUGE: &str = "900M";
/// The longest wait of a plain step, in milliseconds: most things are done by then.
const SOON: u64 = 30_000;
/// A wait in milliseconds after which a backup is old enough, whatever is done meanwhile: at rest,
/// the leases alone are renewed three hundred times.
const OLD: u64 = 3 * 3_600_000;

/// A plainer form of a step; `None` if it has it.
pub(super) type Form = fn(&Step) -> Option<Step>;

/// The form to try of each step before any is left out.
pub(super) const FIRST: [Form; 1] = [with_old_backup];

/// The forms to try of each step that is left, one after the other.
pub(super) const FORMS: [Form; 4] = [plain, large, huge, soon];

/// A claim for a new volume that needs no pod.
fn plain(step: &Step) -> Option<Step> {
    let Action::Claim { name, size, .. } = &step.action else {
        return None;
    };
    changed(step, claim(name, size))
}

/// The same, of a large size.
fn large(step: &Step) -> Option<Step> {
    of_size(LARGE, step)
}

fn huge(step: &Step) -> Option<Step> {
    of_size(HUGE, step)
}

fn of_size(size: &str, step: &Step) -> Option<Step> {
    let Action::Claim { name, .. } = &step.action else {
        return None;
    };
    changed(step, claim(name, size))
}

fn claim(name: &str, size: &str) -> Action {
    Action::Claim {
        name: name.to_owned(),
        class: CLASS.to_owned(),
        size: size.to_owned(),
        block: false,
        mode: "ReadWriteOnce".to_owned(),
        source: None,
        attributes: None,
    }
}

/// This step with another action; `None` if it has it.
fn changed(step: &Step, action: Action) -> Option<Step> {
    let wait = step.wait;
    (step.action != action).then_some(Step { wait, action })
}

/// The step after a short wait.
fn soon(step: &Step) -> Option<Step> {
    let action = step.action.clone();
    (step.wait > SOON).then_some(Step { wait: SOON, action })
}

/// A return to a backup after so long a wait that the backup is old enough without the steps in
/// between.
fn with_old_backup(step: &Step) -> Option<Step> {
    let action = Action::World {
        trouble: Trouble::Restore,
    };
    (step.action == action && step.wait < OLD).then_some(Step { wait: OLD, action })
}

/// The plainer clusters to try of a history, one after the other; `None` if it has it.
pub(super) const CLUSTERS: [fn(&History) -> Option<History>; 4] = [
    without_attachments,
    without_options,
    with_room,
    with_plain_end,
];

fn without_attachments(history: &History) -> Option<History> {
    history.attach.then(|| History {
        attach: false,
        ..history.clone()
    })
}

fn without_options(history: &History) -> Option<History> {
    (!history.options.is_empty()).then(|| History {
        options: Vec::new(),
        ..history.clone()
    })
}

fn with_room(history: &History) -> Option<History> {
    history.tight.then(|| History {
        tight: false,
        ..history.clone()
    })
}

fn with_plain_end(history: &History) -> Option<History> {
    history.last.is_some().then(|| History {
        last: None,
        ..history.clone()
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::history::{ClusterOption, World};

    fn claim_of(class: &str, size: &str) -> Value {
        json!({"wait": 10, "do": "claim", "name": "c1", "class": class, "size": size,
            "mode": "ReadWriteOnce"})
    }

    fn copy() -> Value {
        let mut copy = claim_of("xfs", "1");
        copy["source"] = json!({"claim": "c2"});
        copy
    }

    fn restore(wait: u64) -> Value {
        json!({"wait": wait, "do": "world", "trouble": {"kind": "restore"}})
    }

    fn pod(wait: u64) -> Value {
        json!({"wait": wait, "do": "pod", "name": "p1", "claims": ["c1"]})
    }

    #[rstest]
    #[case::copy(plain, copy(), Some(claim_of(CLASS, "1")))]
    #[case::plain(plain, claim_of(CLASS, "1"), None)]
    #[case::small(large, claim_of("xfs", "1"), Some(claim_of(CLASS, LARGE)))]
    #[case::large(large, claim_of(CLASS, LARGE), None)]
    #[case::larger(huge, claim_of(CLASS, LARGE), Some(claim_of(CLASS, HUGE)))]
    #[case::no_claim(plain, pod(10), None)]
    #[case::young(with_old_backup, restore(OLD - 1), Some(restore(OLD)))]
    #[case::old(with_old_backup, restore(OLD), None)]
    #[case::no_backup(with_old_backup, pod(10), None)]
    #[case::late(soon, pod(SOON + 1), Some(pod(SOON)))]
    #[case::soon(soon, pod(SOON), None)]
    fn forms_of_steps(#[case] form: Form, #[case] step: Value, #[case] expected: Option<Value>) {
        let step: Step = serde_json::from_value(step).expect("a step");
        let plainer = form(&step).map(|step| serde_json::to_value(step).expect("JSON"));
        assert_eq!(plainer, expected);
    }

    #[test]
    fn each_plainer_cluster_has_one_trait_less() {
        let mut history = History::of(1, World::Calm, 0);
        (history.attach, history.tight, history.last) = (true, true, Some(Trouble::Backup));
        history.options = ClusterOption::ALL.to_vec();
        let traits = |one: History| {
            let has_options = !one.options.is_empty();
            (one.attach, has_options, one.tight, one.last.is_some())
        };
        let plainer = CLUSTERS.map(|form| form(&history).map(traits));
        let expected = [
            (false, true, true, true),
            (true, false, true, true),
            (true, true, false, true),
            (true, true, true, false),
        ];
        assert_eq!(plainer, expected.map(Some));
        (history.attach, history.tight, history.last) = (false, false, None);
        history.options.clear();
        assert!(CLUSTERS.iter().all(|form| form(&history).is_none()));
    }
}
