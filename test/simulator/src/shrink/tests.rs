use super::*;
use crate::history::trouble::Trouble;
use crate::history::{Action, ClusterOption, Step, World};

#[test]
fn only_steps_that_matter_are_left() {
    let all: [&[usize]; 6] = [&[], &[0], &[9], &[3, 4], &[0, 5, 9], &[1, 2, 3, 7]];
    for matter in all {
        let left = fewest(10, &[], |places| {
            Ok(matter.iter().all(|one| places.contains(one)))
        });
        assert_eq!(left.expect("places"), matter);
    }
    let none = fewest(0, &[], |_| Ok(true)).expect("places");
    assert!(none.is_empty());
}

#[test]
fn steps_that_belong_together_are_left_out_together() {
    let alone: &[Vec<usize>] = &[];
    let pair: &[Vec<usize>] = &[vec![1, 8]];
    for (related, expected) in [(alone, vec![1, 5, 8]), (pair, vec![5])] {
        let left = fewest(10, related, |places| {
            let has = |place: usize| places.contains(&place);
            Ok(has(5) && has(1) == has(8))
        });
        assert_eq!(left.expect("places"), expected, "{related:?}");
    }
}

/// A claim that waits for its pod, and the pod.
fn claim_and_pod(number: usize) -> [Step; 2] {
    let (claim, pod) = (format!("c{number}"), format!("p{number}"));
    let actions = [
        Action::Claim {
            name: claim.clone(),
            class: "ext4".to_owned(),
            size: "100M".to_owned(),
            block: false,
            mode: "ReadWriteOnce".to_owned(),
            source: None,
            attributes: None,
        },
        Action::Pod {
            name: pod,
            claims: vec![claim],
        },
    ];
    actions.map(|action| Step { wait: 10, action })
}

/// What the volumes of a history have together, in units of 1 MB.
fn volumes(history: &History) -> u64 {
    let is_used = |name: &String| {
        history
            .steps
            .iter()
            .any(|step| matches!(&step.action, Action::Pod { claims, .. } if claims.contains(name)))
    };
    let sizes = history.steps.iter().map(|step| match &step.action {
        Action::Claim {
            name, class, size, ..
        } if class == "ext4-now" || is_used(name) => match size.as_str() {
            "100M" => 100,
            "300Mi" => 300,
            // There is no room.
            _ => 0,
        },
        _ => 0,
    });
    sizes.sum()
}

#[test]
fn plainer_steps_need_fewer_others() {
    let history = History {
        attach: true,
        options: ClusterOption::ALL.to_vec(),
        tight: true,
        last: Some(Trouble::Moderation),
        steps: (0..6).flat_map(claim_and_pod).collect(),
        ..History::of(1, World::Calm, 0)
    };
    let short = shortest(&history, &mut |tried| Ok(volumes(tried) >= 600)).expect("a history");
    let actions = short.steps.iter().map(|step| step.action.to_string());
    assert_eq!(short.steps.len(), 2, "{:?}", actions.collect::<Vec<_>>());
    assert_eq!(volumes(&short), 600);
    assert!(!short.attach && !short.tight && short.last.is_none() && short.options.is_empty());
}

#[test]
fn a_history_without_a_shorter_one_stays() {
    let history = History::of(7, World::Rough, 20);
    let whole = format!("{history:?}");
    let short = shortest(&history, &mut |_| Ok(false)).expect("a history");
    assert_eq!(format!("{short:?}"), whole);
}

#[test]
fn a_rule_has_no_names() {
    for (violation, expected) in [
        ("data lost: the snapshot s1 was to be kept", "data lost"),
        (
            "claim c1 is pending, and nothing says why: deleted null",
            "claim is pending, and nothing says why",
        ),
        (
            "a dead process of n2 still has its pools",
            "a dead process of still has its pools",
        ),
    ] {
        assert_eq!(rule(violation), expected);
    }
}

#[test]
fn a_rule_is_broken_by_a_violation_that_begins_as_expected() {
    let broken = BrokenRule {
        rule: rule("data lost: the snapshot"),
        sentence: "data lost: the snapshot",
    };
    for (violations, expected) in [
        (vec![], false),
        (vec!["data lost: the volume v"], false),
        (vec!["group g1 is ready"], false),
        (vec!["group g1 is ready", "data lost: the snapshot s"], true),
    ] {
        let outcome = Outcome {
            digest: String::new(),
            violations: violations.into_iter().map(str::to_owned).collect(),
            last: Vec::new(),
            seconds: 0,
            requests: 0,
            waits: Vec::new(),
            export: None,
        };
        assert_eq!(broken.is_in(&outcome), expected, "{outcome:?}");
    }
}
