use std::time::Duration;

use super::*;
use crate::rpc_faults::read;

const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const STAGE: &str = "/csi.v1.Node/NodeStageVolume";

fn active(yaml: &str) -> ActiveRules {
    let mut active = ActiveRules::default();
    active.replace(read(yaml).unwrap(), Instant::now());
    active
}

/// The name of the rule that takes a call.
fn taken(active: &mut ActiveRules, path: &str, subject: &CallSubject<'_>) -> Option<String> {
    let rule = active.decide(path, subject, "n1", Instant::now());
    rule.map(|rule| rule.name.to_string())
}

#[test]
fn a_rule_takes_the_calls_that_are_like_it() {
    let claim = CallSubject {
        objects: vec!["pvc-1", "snap-1"],
        claim: "data-0",
        namespace: "shop",
        node: "",
    };
    let publish = CallSubject {
        objects: vec!["v1"],
        node: "n2",
        ..CallSubject::default()
    };
    for (conditions, path, subject, expected) in [
        ("method: CreateVolume", CREATE, &claim, true),
        ("method: CreateVolume", STAGE, &claim, false),
        ("method: [NodeStageVolume, Create*]", CREATE, &claim, true),
        ("method: csi.v1.Node/*", CREATE, &claim, false),
        ("method: '*'\n  object: pvc-1", CREATE, &claim, true),
        ("method: '*'\n  object: snap-*", CREATE, &claim, true),
        ("method: '*'\n  object: pvc-2", CREATE, &claim, false),
        ("method: '*'\n  claim: data-0", CREATE, &claim, true),
        ("method: '*'\n  claim: data-1", CREATE, &claim, false),
        ("method: '*'\n  claim: '*'", CREATE, &publish, false),
        ("method: '*'\n  namespace: shop", CREATE, &claim, true),
        ("method: '*'\n  namespace: bank", CREATE, &claim, false),
        // The node of the request, else that of the process.
        ("method: '*'\n  node: n1", STAGE, &claim, true),
        ("method: '*'\n  node: n1", STAGE, &publish, false),
        ("method: '*'\n  node: n2", STAGE, &publish, true),
        (
            "method: '*'\n  claim: data-0\n  namespace: bank",
            CREATE,
            &claim,
            false,
        ),
    ] {
        let mut active = active(&format!("rules:\n- {conditions}\n  code: INTERNAL"));
        let found = taken(&mut active, path, subject).is_some();
        assert_eq!(found, expected, "{conditions}");
    }
}

#[test]
fn the_first_calls_are_taken_and_then_the_next_rule_has_its_turn() {
    let mut active = active(
        "rules:\n\
         - {name: twice, method: CreateVolume, times: 2, code: ABORTED}\n\
         - {name: rest, method: '*', delayBefore: 1s}",
    );
    let subject = CallSubject::default();
    let mut order = |path| taken(&mut active, path, &subject).unwrap();
    let paths = [STAGE, CREATE, CREATE, CREATE];
    assert_eq!(paths.map(&mut order), ["rest", "twice", "twice", "rest"]);
}

#[test]
fn a_seed_repeats_the_draws_and_another_one_does_not() {
    let run = |seed: u64| {
        let mut active = active(&format!(
            "seed: {seed}\nrules:\n- {{method: '*', probability: 0.25, code: ABORTED}}"
        ));
        let subject = CallSubject::default();
        let calls = (0..400).map(|_| taken(&mut active, CREATE, &subject).is_some());
        calls.collect::<Vec<_>>()
    };
    let taken = run(1).into_iter().filter(|taken| *taken).count();
    assert!((60..140).contains(&taken), "{taken} of 400");
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_rule_ends_with_its_lifetime() {
    let started = Instant::now();
    let mut active = ActiveRules::default();
    let yaml = "rules: [{method: '*', for: 10s, code: ABORTED}]";
    active.replace(read(yaml).unwrap(), started);
    let subject = CallSubject::default();
    for (seconds, expected) in [(0, true), (9, true), (10, false), (60, false)] {
        let now = started + Duration::from_secs(seconds);
        let found = active.decide(CREATE, &subject, "", now).is_some();
        assert_eq!(found, expected, "after {seconds} s");
    }
}

#[test]
fn only_a_rule_that_stays_as_it_is_goes_on_counting() {
    let one = "{name: one, method: '*', times: 1, code: ABORTED}";
    let other = "{name: other, method: NodeGetInfo, code: ABORTED}";
    let changed = "{name: one, method: '*', times: 1, code: INTERNAL}";
    for (then, expected) in [
        (format!("rules: [{other}, {one}]"), None),
        (format!("rules: [{changed}]"), Some("one".to_owned())),
        (format!("seed: 1\nrules: [{one}]"), Some("one".to_owned())),
        (String::new(), None),
    ] {
        let mut active = active(&format!("rules: [{one}]"));
        let subject = CallSubject::default();
        assert!(taken(&mut active, CREATE, &subject).is_some());
        assert!(taken(&mut active, CREATE, &subject).is_none());
        active.replace(read(&then).unwrap(), Instant::now());
        assert_eq!(taken(&mut active, CREATE, &subject), expected, "{then}");
    }
}
