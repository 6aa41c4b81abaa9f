//! Bound claims that change, and their attachments.

use serde_json::{Value, json};

use super::{Case, ago, bound, claim, volume, warning, with};

#[test]
fn changes_of_bound_claims() {
    let condition = |kind: &str, status: &str| {
        json!([{
            "type": kind, "status": status, "message": "m", "lastTransitionTime": ago(30),
        }])
    };
    let conditions = |kind: &str, status: &str| Case {
        claim: with(claim("Bound", 900), "/status/conditions", condition(kind, status)),
        ..bound()
    };
    for (case, judged) in [
        (conditions("Resizing", "True"), "Bound (it is being expanded)"),
        (conditions("Resizing", "False"), "Bound"),
        (
            conditions("FileSystemResizePending", "True"),
            "Bound (its filesystem grows when a pod uses it)",
        ),
        (conditions("ControllerResizeError", "True"), "Bound STUCK 30s: ControllerResizeError: m"),
        (conditions("ModifyVolumeError", "True"), "Bound STUCK 30s: ModifyVolumeError: m"),
        (
            Case {
                claim: with(
                    claim("Bound", 900),
                    "/status/allocatedResourceStatuses",
                    json!({"storage": "ControllerResizeInfeasible"}),
                ),
                ..bound()
            },
            "Bound STUCK: ControllerResizeInfeasible: ask for a size that the pool has room for",
        ),
        (
            Case {
                claim: with(
                    claim("Bound", 900),
                    "/status/allocatedResourceStatuses",
                    json!({"storage": "NodeResizePending"}),
                ),
                ..bound()
            },
            "Bound",
        ),
        (
            Case { events: vec![warning("c", "VolumeConditionAbnormal", 60)], ..bound() },
            "Bound (VolumeConditionAbnormal: why)",
        ),
        (Case { events: vec![warning("c", "ProvisioningFailed", 800)], ..bound() }, "Bound"),
    ] {
        assert_eq!(case.judged(), judged);
    }
}

#[test]
fn attachments_and_failed_volumes() {
    let attachment = |attached: bool, attach: Value, detach: Value| {
        json!({
            "metadata": {"name": "a"},
            "spec": {"attacher": "d", "nodeName": "n1", "source": {}},
            "status": {"attached": attached, "attachError": attach, "detachError": detach},
        })
    };
    let error = || json!({"message": "busy", "time": ago(8)});
    let attachments = |attachment| Case { attachments: vec![attachment], ..bound() };
    for (case, judged) in [
        (attachments(attachment(true, Value::Null, Value::Null)), "Bound"),
        (
            attachments(attachment(false, error(), Value::Null)),
            "Bound STUCK 8s: attaching to node n1: busy",
        ),
        (attachments(attachment(true, error(), Value::Null)), "Bound"),
        (
            attachments(attachment(true, Value::Null, error())),
            "Bound STUCK 8s: detaching from node n1: busy",
        ),
        (
            Case { volume: with(volume("Failed"), "/status/message", json!("in use")), ..bound() },
            "Bound STUCK: PersistentVolume pv failed: in use",
        ),
    ] {
        assert_eq!(case.judged(), judged);
    }
}
