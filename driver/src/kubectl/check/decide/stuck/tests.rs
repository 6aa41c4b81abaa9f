use hostloop_controllers::api::names::PROVISIONER;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::kubectl::check::decide::testing::{DRIVER, good, marks, object};
use crate::kubectl::check::line::Mark::{self, *};

/// More than five minutes before the time in the facts.
const OLD: &str = "2025-12-31T23:54:59Z";
/// Less than that.
const NEW: &str = "2025-12-31T23:55:00Z";

fn claim(made: &str, phase: &str, deleted: Option<&str>, mode: &str) -> Value {
    json!({
        "metadata": {
            "name": "data", "namespace": "ns", "creationTimestamp": made,
            "deletionTimestamp": deleted, "annotations": {PROVISIONER: DRIVER},
        },
        "spec": {"accessModes": [mode]},
        "status": {"phase": phase},
    })
}

#[rstest]
#[case::bound(OLD, "Bound", None, Passed)]
#[case::new(NEW, "Pending", None, Passed)]
#[case::pending(OLD, "Pending", None, Warning)]
#[case::lost(NEW, "Lost", None, Failed)]
#[case::going(OLD, "Bound", Some(NEW), Passed)]
#[case::stays(OLD, "Bound", Some(OLD), Warning)]
fn stuck_claims(
    #[case] made: &str,
    #[case] phase: &str,
    #[case] deleted: Option<&str>,
    #[case] mark: Mark,
) {
    let mut facts = good();
    let mut claim = claim(made, phase, deleted, "ReadWriteOnce");
    facts.claims = Ok(vec![object(claim.clone())]);
    let lines = claims(&facts).unwrap();
    assert_eq!(marks(&lines), [mark]);
    assert!(mark == Passed || lines[0].text.ends_with(": ns/data"), "{lines:?}");

    claim["metadata"]["annotations"] = json!({PROVISIONER: "other"});
    facts.claims = Ok(vec![object(claim)]);
    assert_eq!(marks(&claims(&facts).unwrap()), [Passed]);
}

#[rstest]
#[case::bound(json!({"phase": "Bound"}), "Delete", None, &[])]
#[case::failed(json!({"phase": "Failed"}), "Delete", None, &[Failed])]
#[case::released(json!({"phase": "Released", "lastPhaseTransitionTime": OLD}), "Delete", None,
    &[Failed])]
#[case::lately(json!({"phase": "Released", "lastPhaseTransitionTime": NEW}), "Delete", None, &[])]
#[case::retained(json!({"phase": "Released", "lastPhaseTransitionTime": OLD}), "Retain", None, &[])]
#[case::going(json!({"phase": "Bound"}), "Delete", Some(OLD), &[Failed])]
fn stuck_volumes(
    #[case] status: Value,
    #[case] policy: &str,
    #[case] deleted: Option<&str>,
    #[case] expected: &[Mark],
) {
    let mut facts = good();
    facts.volumes = Ok(vec![object(json!({
        "metadata": {"name": "pv", "deletionTimestamp": deleted},
        "spec": {"persistentVolumeReclaimPolicy": policy,
            "csi": {"driver": DRIVER, "volumeHandle": "h"}},
        "status": status,
    }))]);
    assert_eq!(marks(&volumes(&facts).unwrap()), expected);
}

#[rstest]
#[case::attached(OLD, json!({"attached": true}), None, DRIVER, &[Passed])]
#[case::new(NEW, json!({"attached": false}), None, DRIVER, &[Passed])]
#[case::waits(OLD, json!({"attached": false, "attachError": {"message": "no"}}), None, DRIVER,
    &[Failed])]
#[case::detaches(OLD, json!({"attached": true}), Some(OLD), DRIVER, &[Failed])]
#[case::others(OLD, json!({"attached": false}), None, "other", &[])]
fn stuck_attachments(
    #[case] made: &str,
    #[case] status: Value,
    #[case] deleted: Option<&str>,
    #[case] attacher: &str,
    #[case] expected: &[Mark],
) {
    let mut facts = good();
    facts.attachments = Ok(vec![object(json!({
        "metadata": {"name": "va", "creationTimestamp": made, "deletionTimestamp": deleted},
        "spec": {"attacher": attacher, "nodeName": "n1", "source": {}},
        "status": status,
    }))]);
    assert_eq!(marks(&attachments(&facts).unwrap()), expected);
}

#[test]
fn claims_for_many_nodes_get_advice_unless_they_are_rejected() {
    let mut facts = good();
    facts.claims = Ok(vec![object(claim(NEW, "Bound", None, "ReadWriteMany"))]);
    let lines = multi_node(&facts).unwrap();
    assert_eq!(marks(&lines), [Warning]);
    assert_eq!(lines[0].text, "Claims are ReadWriteMany: ns/data");
    let container = json!({"args": ["run", "--reject-multi-node"]});
    let set = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
    facts.daemon_sets = Ok(vec![object(set)]);
    assert_eq!(multi_node(&facts), Ok(vec![]));
}

#[test]
fn old_code_probe() {
    let mut facts = good();
    let claim = claim("2025-12-31T23:57:30Z", "Pending", None, "ReadWriteOnce");
    facts.claims = Ok(vec![object(claim)]);
    assert_eq!(marks(&claims(&facts).unwrap()), [Warning]);
}
