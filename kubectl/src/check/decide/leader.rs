//! The leader, which runs the cluster-wide tasks.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;

use super::known;
use crate::check::facts::Facts;
use crate::check::line::Line;

/// Clocks of leader, API server and this machine may differ by some seconds.
const CLOCKS: i64 = 10;

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let lease = match known("Leader", &facts.lease) {
        Ok(lease) => lease,
        Err(line) => return vec![line],
    };
    let state = match lease {
        None => Err("its lease does not exist".to_owned()),
        Some(lease) => state(lease, facts.now),
    };
    let namespace = &facts.namespace;
    vec![match state {
        Ok(holder) => Line::ok(format!("The leader is {holder}")),
        Err(why) => Line::failed(
            format!("hostloop has no leader: {why}"),
            format!(
                "Claims with immediate binding wait, and deleted nodes are not cleaned up. Look \
                 at: kubectl -n {namespace} describe pods -l \
                 app.kubernetes.io/name=hostloop-controller"
            ),
        ),
    }]
}

/// The holder of a lease, or why it has none.
pub(super) fn state(lease: &Lease, now: Timestamp) -> Result<String, String> {
    let spec = lease.spec.as_ref();
    let holder = spec
        .and_then(|s| s.holder_identity.as_deref())
        .filter(|h| !h.is_empty());
    let Some(holder) = holder else {
        return Err("its lease has no holder".to_owned());
    };
    let renewed = spec.and_then(|s| s.renew_time.as_ref()).map(|time| time.0);
    let lasts = spec
        .and_then(|s| s.lease_duration_seconds)
        .map_or(15, i64::from);
    match renewed.map(|renewed| now.duration_since(renewed).as_secs()) {
        Some(age) if age <= lasts + CLOCKS => Ok(holder.to_owned()),
        Some(age) => Err(format!(
            "{holder} renewed the lease {age} s ago, and it lasts {lasts} s"
        )),
        None => Err(format!("{holder} has never renewed the lease")),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::check::decide::testing::{good, marks, object};
    use crate::check::line::Mark::*;

    #[rstest]
    #[case::held(json!({"holderIdentity": "a", "leaseDurationSeconds": 15,
        "renewTime": "2026-01-01T00:00:00.000000Z"}), Ok("a"))]
    #[case::slack(json!({"holderIdentity": "a", "leaseDurationSeconds": 15,
        "renewTime": "2025-12-31T23:59:35.000000Z"}), Ok("a"))]
    #[case::late(json!({"holderIdentity": "a", "leaseDurationSeconds": 15,
        "renewTime": "2025-12-31T23:59:34.000000Z"}), Err("26 s ago"))]
    #[case::ahead(json!({"holderIdentity": "a", "renewTime": "2026-01-01T01:00:00.000000Z"}),
        Ok("a"))]
    #[case::released(json!({"holderIdentity": ""}), Err("no holder"))]
    #[case::never(json!({"holderIdentity": "a"}), Err("never"))]
    fn states(#[case] spec: Value, #[case] expected: Result<&str, &str>) {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let got = state(&object(json!({"spec": spec})), now);
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            (Err(got), Err(expected)) => assert!(got.contains(expected), "{got}"),
            (got, expected) => panic!("{got:?} {expected:?}"),
        }
    }

    #[test]
    fn without_a_lease_there_is_no_leader() {
        let mut facts = good();
        facts.lease = Ok(None);
        assert_eq!(marks(&lines(&facts)), [Failed]);
    }
}
