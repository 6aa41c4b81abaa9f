use std::fs;

use super::*;

const PATH: &str = "/csi.v1.Controller/CreateVolume";

fn rule(name: &str) -> String {
    format!("rules: [{{name: {name}, method: '*', code: ABORTED}}]")
}

/// The rule that takes a call now.
fn taken(injector: &FaultInjector) -> Option<String> {
    let fault = injector.decide(PATH, &CallSubject::default());
    fault.map(|fault| fault.rule.to_string())
}

#[test]
fn a_file_is_read_again_and_an_invalid_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.yaml");
    // The file may come later.
    let injector = FaultInjector::open(&path, None).unwrap();
    assert_eq!(taken(&injector), None);

    fs::write(&path, rule("one")).unwrap();
    injector.reload().unwrap();
    assert_eq!(taken(&injector).as_deref(), Some("one"));

    fs::write(&path, "rules: [{method: CreateVolumes, code: ABORTED}]").unwrap();
    let error = injector.reload().unwrap_err().to_string();
    assert!(error.contains("rules[0].method"), "{error}");
    // It is not read again until it changes.
    injector.reload().unwrap();
    assert_eq!(taken(&injector).as_deref(), Some("one"));

    fs::write(&path, rule("two")).unwrap();
    injector.reload().unwrap();
    assert_eq!(taken(&injector).as_deref(), Some("two"));

    fs::remove_file(&path).unwrap();
    injector.reload().unwrap();
    assert_eq!(taken(&injector), None, "removing the file heals");

    let counts = injector.counts().into_iter();
    let counts: Vec<_> = counts
        .map(|count| (count.rule, count.effect, count.calls))
        .collect();
    let expected = [("one", 2), ("two", 1)];
    assert_eq!(
        counts,
        expected.map(|(rule, calls)| (rule.to_owned(), "refused", calls))
    );
}

#[test]
fn a_file_that_cannot_be_used_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.yaml");
    fs::write(&path, "rules: [{method: '*'}]").unwrap();
    let error = FaultInjector::open(&path, None).unwrap_err().to_string();
    let expected = format!("fault rules: {}: rules[0]: does nothing", path.display());
    assert!(error.starts_with(&expected), "{error}");

    fs::write(&path, "#".repeat(300 << 10)).unwrap();
    let error = FaultInjector::open(&path, None).unwrap_err();
    assert!(matches!(error, FaultRulesError::TooLarge(_)), "{error}");
    let error = FaultInjector::open(dir.path(), None).unwrap_err();
    assert!(
        matches!(error, FaultRulesError::Unreadable { .. }),
        "{error}"
    );
}

#[test]
fn the_node_of_the_process_counts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.yaml");
    fs::write(&path, "rules: [{method: '*', node: n1, code: ABORTED}]").unwrap();
    for (node, expected) in [(Some("n1"), true), (Some("n2"), false), (None, false)] {
        let injector = FaultInjector::open(&path, node).unwrap();
        assert_eq!(taken(&injector).is_some(), expected, "{node:?}");
    }
}

#[test]
fn the_counts_are_bounded() {
    let mut state = InjectorState::default();
    for number in 0..2 * MAX_COUNTS {
        state.count(&Fault {
            rule: format!("r{number}").into(),
            delay_before: Duration::ZERO,
            delay_after: Duration::ZERO,
            outcome: crate::rpc_faults::Outcome::Unanswered,
            stop: CancellationToken::new(),
        });
    }
    assert_eq!(state.counts.len(), MAX_COUNTS + 1);
    let other: (Arc<str>, &'static str) = ("other".into(), "unanswered");
    assert_eq!(state.counts[&other], MAX_COUNTS as u64);
}
