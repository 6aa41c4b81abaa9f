use hostloop_api_objects::constants::PROVISIONER;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::check::decide::testing::{DRIVER, good, marks, object};
use crate::check::line::Mark::{self, *};
use crate::test_objects;

/// More than two minutes before the time in the facts.
const OLD: &str = "2025-12-31T23:57:59Z";
/// Less than that.
const NEW: &str = "2025-12-31T23:58:00Z";

/// The marks and the text of what is not as it should be, and of claims and attachments.
fn judged(facts: &Facts) -> (Vec<Mark>, String) {
    let lines = lines(facts);
    let text = lines
        .first()
        .map(|line| line.text.clone())
        .unwrap_or_default();
    (marks(&lines), text)
}

fn with(change: impl FnOnce(&mut VolumeObjects)) -> Facts {
    let mut facts = good();
    change(facts.objects.as_mut().unwrap());
    facts
}

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
    let mut claim = claim(made, phase, deleted, "ReadWriteOnce");
    let (marks, text) = judged(&with(|objects| {
        objects.claims = vec![object(claim.clone())];
        objects.has_all_volumes = false;
    }));
    assert_eq!(marks, [mark]);
    assert!(mark == Passed || text.ends_with(": ns/data"), "{text}");

    claim["metadata"]["annotations"] = json!({PROVISIONER: "other"});
    let facts = with(|objects| objects.claims = vec![object(claim)]);
    assert_eq!(judged(&facts).0, [Passed]);
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
    let volume = json!({
        "metadata": {"name": "pv", "deletionTimestamp": deleted},
        "spec": {"persistentVolumeReclaimPolicy": policy,
            "csi": {"driver": DRIVER, "volumeHandle": "h"}},
        "status": status,
    });
    let facts = with(|objects| objects.volumes = vec![object(volume)]);
    assert_eq!(judged(&facts).0, [&[Passed], expected].concat());
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
    let attachment = json!({
        "metadata": {"name": "va", "creationTimestamp": made, "deletionTimestamp": deleted},
        "spec": {"attacher": attacher, "nodeName": "n1", "source": {}},
        "status": status,
    });
    let facts = with(|objects| objects.attachments = vec![object(attachment)]);
    assert_eq!(judged(&facts).0, [&[Passed], expected].concat());
}

#[test]
fn claims_for_many_nodes_get_advice_unless_they_are_rejected() {
    let claim = object(claim(NEW, "Bound", None, "ReadWriteMany"));
    let mut facts = with(|objects| objects.claims = vec![claim]);
    let lines = multi_node(&facts, facts.objects.as_ref().unwrap());
    assert_eq!(marks(&lines), [Warning]);
    assert_eq!(lines[0].text, "Claims are ReadWriteMany: ns/data");
    let container = json!({"args": ["run", "--reject-multi-node"]});
    let set = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
    facts.daemon_sets = Ok(vec![object(set)]);
    assert_eq!(multi_node(&facts, facts.objects.as_ref().unwrap()), []);
}

#[test]
fn claims_that_nodes_share_are_for_many_nodes() {
    let mut shared = claim(NEW, "Pending", None, "ReadWriteMany");
    shared["spec"]["storageClassName"] = json!("shared");
    let class = json!({"metadata": {"name": "shared"}, "provisioner": DRIVER,
        "parameters": {"reach": "kernel"}});
    let facts = with(|objects| {
        objects.claims = vec![object(shared.clone())];
        objects.classes = vec![object(class)];
    });
    assert_eq!(multi_node(&facts, facts.objects.as_ref().unwrap()), []);

    shared["spec"]["volumeName"] = json!("pv");
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"csi": {"driver": DRIVER,
        "volumeHandle": "v", "volumeAttributes": {"reach": "kernel"}}}});
    let facts = with(|objects| {
        objects.claims = vec![object(shared)];
        objects.volumes = vec![object(volume)];
    });
    assert_eq!(multi_node(&facts, facts.objects.as_ref().unwrap()), []);
}

/// Whatever is stuck for `status` is so for `check`, and nothing else.
#[test]
fn check_and_status_agree() {
    let yaml = include_str!("../../../status/join/tests/objects.yaml");
    let mut facts = good();
    let mut objects = test_objects::cluster(&test_objects::objects(yaml));
    objects
        .claims
        .push(object(claim(OLD, "Pending", None, "ReadWriteOnce")));
    facts.objects = Ok(objects);
    facts.now = "2027-01-01T00:00:00Z".parse().unwrap();
    let objects = facts.objects.as_ref().unwrap();
    let now_ns = facts.now.as_nanosecond().try_into().unwrap();
    let report = status::join(&ClusterFacts {
        objects,
        nodes: &facts.reports,
        driver: &facts.driver,
        namespace: None,
        failed_calls: &FailedCalls::default(),
        now_ns,
    });
    let said: Vec<Line> = lines(&facts)
        .into_iter()
        .filter(|line| [Warning, Failed].contains(&line.mark))
        .collect();
    let mut stuck = 0;
    for row in &report.volumes {
        let name = row
            .claim
            .clone()
            .or(row.inline_name())
            .or(row.volume.clone());
        let Some(name) = name else { continue };
        let name = in_namespace(row.namespace.as_ref(), &name);
        let named = said.iter().any(|line| {
            let (_, all) = line.text.split_once(": ").unwrap();
            all.split(", ").any(|said| *said == name)
        });
        assert_eq!(named, row.stuck.is_some(), "{name}: {row:?} {said:?}");
        stuck += usize::from(row.stuck.is_some());
    }
    for row in &report.snapshots {
        let Some(name) = row.name.as_ref().filter(|_| row.stuck.is_some()) else {
            continue;
        };
        assert!(
            said.iter().any(|line| line.text.contains(name)),
            "{name}: {said:?}"
        );
    }
    assert!(stuck > 0, "{report:?}");
}
