use std::time::Duration;

use rstest::rstest;

use super::*;

/// Conditions from a text such as `Degraded Full 90%; DataLoss Gone`.
fn conditions_from(text: &str) -> Vec<HealthCondition> {
    let texts = text.split("; ").filter(|text| !text.is_empty());
    texts
        .map(|text| {
            let mut words = text.splitn(3, ' ');
            let mut word = || words.next().unwrap_or_default().to_owned();
            HealthCondition {
                status: word(),
                reason: word(),
                message: word(),
            }
        })
        .collect()
}

fn problem(status: &'static str, reason: &str, message: &str) -> HealthProblem {
    HealthProblem {
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

#[rstest]
#[case::healthy(&[], "")]
#[case::in_order(
    &[("Inaccessible", "B"), ("Inaccessible", "A"), ("DataLoss", "C")],
    "DataLoss C; Inaccessible A; Inaccessible B"
)]
#[case::the_first_message_of_a_kind(
    &[("Degraded", "A"), ("Degraded", "A"), ("DataLoss", "A")],
    "DataLoss A; Degraded A"
)]
// The API server refuses a status with one of these.
#[case::of_an_unknown_status(&[("Unknown", "A"), ("Degraded", "B")], "Degraded B")]
#[case::without_a_reason(&[("Degraded", "")], "")]
#[case::with_a_sentence_as_its_reason(&[("Degraded", "It is full")], "")]
#[case::that_ends_with_a_colon(&[("Degraded", "Full:")], "")]
#[case::that_begins_with_a_digit(&[("Degraded", "5xx")], "")]
#[case::with_more_than_letters(&[("Degraded", "a_1:b,c_")], "Degraded a_1:b,c_")]
fn a_claim_has_each_condition_once(
    #[case] problems: &[(&'static str, &str)],
    #[case] expected: &str,
) {
    let problems: Vec<_> = problems
        .iter()
        .map(|&(status, reason)| problem(status, reason, ""))
        .collect();
    assert_eq!(conditions(&problems), conditions_from(expected));
}

#[test]
fn conditions_stay_within_the_limits_of_the_api_server() {
    let reasons: Vec<String> = (10..30).map(|number| format!("R{number}")).collect();
    let all: Vec<_> = reasons
        .iter()
        .flat_map(|reason| {
            ["Degraded", "Inaccessible"].map(|status| problem(status, reason, &"ä".repeat(700)))
        })
        .collect();
    let found = conditions(&all);
    let kept: Vec<_> = found.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(kept, reasons[..16]);
    for condition in found {
        assert_eq!(condition.status, "Inaccessible");
        assert_eq!(condition.message, format!("{}…", "ä".repeat(510)));
    }
    let long = "R".repeat(257);
    assert!(conditions(&[problem("Degraded", &long, "")]).is_empty());
    assert_eq!(conditions(&[problem("Degraded", &long[1..], "")]).len(), 1);
}

#[rstest]
#[case::healthy(None, "", 0, false)]
#[case::a_problem(None, "Degraded Full 90%", 0, true)]
#[case::the_same(Some("Degraded Full 90%"), "Degraded Full 90%", 9000, false)]
#[case::another_message(Some("Degraded Full 90%"), "Degraded Full 91%", 1799, false)]
#[case::another_message_after_a_while(Some("Degraded Full 90%"), "Degraded Full 91%", 1800, true)]
#[case::worse(Some("Degraded Full 90%"), "Inaccessible Full 90%", 1, true)]
#[case::one_more(Some("Degraded Full 90%"), "DataLoss Gone; Degraded Full 90%", 1, true)]
#[case::one_less(Some("DataLoss Gone; Degraded Full 90%"), "Degraded Full 90%", 1, true)]
#[case::healthy_again(Some("Degraded Full 90%"), "", 1, true)]
fn a_claim_is_written_when_its_health_changes(
    #[case] known: Option<&str>,
    #[case] found: &str,
    #[case] seconds: u64,
    #[case] expected: bool,
) {
    let since = Instant::now();
    let known = known.map(|text| KnownHealth {
        conditions: conditions_from(text),
        since,
    });
    let now = since + Duration::from_secs(seconds);
    assert_eq!(
        is_due(known.as_ref(), &conditions_from(found), now),
        expected
    );
}

#[rstest]
#[case::healthy(None, "", None)]
#[case::the_same(Some("DataLoss A; Degraded B m"), "DataLoss A; Degraded B m", None)]
// The API server does not order them.
#[case::the_same_in_another_order(
    Some("Degraded B m; DataLoss A"),
    "DataLoss A; Degraded B m",
    None
)]
#[case::healthy_again(Some("Degraded B m"), "", Some(json!(null)))]
#[case::another_message(
    Some("Degraded B m"),
    "Degraded B n",
    Some(json!({"healthConditions": [{"status": "Degraded", "reason": "B", "message": "n"}]}))
)]
#[case::another_kind(
    Some("Degraded B m"),
    "Degraded C",
    Some(json!({
        "healthConditions": [{"status": "Degraded", "reason": "C"}],
        "lastTransitionTime": "1970-01-01T00:01:00Z",
    }))
)]
#[case::a_problem(
    None,
    "DataLoss C",
    Some(json!({
        "healthConditions": [{"status": "DataLoss", "reason": "C"}],
        "lastTransitionTime": "1970-01-01T00:01:00Z",
    }))
)]
fn patches(#[case] has: Option<&str>, #[case] found: &str, #[case] expected: Option<Value>) {
    let has = has.map(|text| HealthStatus {
        health_conditions: conditions_from(text),
    });
    let now = Timestamp::from_second(60).unwrap();
    let patch = patch(has.as_ref(), &conditions_from(found), now);
    assert_eq!(
        patch,
        expected.map(|health| json!({"healthStatus": health}))
    );
}

#[test]
fn what_the_api_server_drops_is_tried_again() {
    let at = Instant::now();
    assert!(!is_recent(None, at));
    assert!(is_recent(Some(at), at + RESYNC - Duration::from_secs(1)));
    assert!(!is_recent(Some(at), at + RESYNC));
}
