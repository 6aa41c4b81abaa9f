//! Bound claims that change, and their attachments.

use serde_json::{Value, json};

use super::{Case, bound, claim, expect, volume, with};
use crate::verdict::testing::ago;

#[test]
fn changes_of_bound_claims() {
    let condition = |kind: &str, status: &str| {
        json!([{
            "type": kind, "status": status, "message": "m", "lastTransitionTime": ago(30),
        }])
    };
    let changed = |pointer: &str, value: Value| Case {
        claim: with(claim("Bound", 900), pointer, value),
        ..bound()
    };
    let conditions =
        |kind: &str, status: &str| changed("/status/conditions", condition(kind, status));
    let resized = |status: &str| {
        changed(
            "/status/allocatedResourceStatuses",
            json!({"storage": status}),
        )
    };
    let infeasible =
        "Bound STUCK: ControllerResizeInfeasible: ask for a size that the pool has room for";
    let abnormal = bound().warning("c", "VolumeConditionAbnormal", 60);
    let late = "Bound (its filesystem grows when a pod uses it)";
    let grows = with(
        claim("Bound", 900),
        "/spec/resources",
        json!({"requests": {"storage": "2Gi"}}),
    );
    let grows = Case {
        claim: with(grows, "/status/capacity", json!({"storage": "1Gi"})),
        ..bound()
    };
    expect([
        (
            conditions("Resizing", "True"),
            "Bound (it is being expanded)",
        ),
        (conditions("Resizing", "False"), "Bound"),
        (conditions("FileSystemResizePending", "True"), late),
        (
            conditions("ControllerResizeError", "True"),
            "Bound STUCK 30s: ControllerResizeError: m",
        ),
        (
            conditions("ModifyVolumeError", "True"),
            "Bound STUCK 30s: ModifyVolumeError: m",
        ),
        (resized("ControllerResizeInfeasible"), infeasible),
        (resized("NodeResizePending"), "Bound"),
        (abnormal, "Bound (VolumeConditionAbnormal: why)"),
        (bound().warning("c", "ProvisioningFailed", 800), "Bound"),
        (grows, "Bound (it is being expanded)"),
    ]);
}

#[test]
fn warnings_before_the_present_state_are_history() {
    let since = |seconds: u64| Case {
        volume: with(
            volume("Bound"),
            "/status/lastPhaseTransitionTime",
            json!(ago(seconds)),
        ),
        ..bound()
    };
    let failed = |case: Case| case.warning("c", "ProvisioningFailed", 30);
    let abnormal = |case: Case| case.warning("c", "VolumeConditionAbnormal", 30);
    let published = since(20).on_node(true, &["/k/stage", "/pods/uid-a/v"]);
    expect([
        (failed(since(20)), "Bound"),
        (failed(published), "published"),
        (
            failed(since(40)).normal("c", "ProvisioningSucceeded", 25),
            "Bound",
        ),
        (abnormal(since(40)), "Bound (VolumeConditionAbnormal: why)"),
        (
            abnormal(since(40)).normal("c", "VolumeConditionNormal", 25),
            "Bound",
        ),
        (abnormal(since(20)), "Bound"),
    ]);
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
    let attached = |attached: bool, attach: Value, detach: Value| Case {
        attachments: vec![attachment(attached, attach, detach)],
        ..bound()
    };
    let failed = with(volume("Failed"), "/status/message", json!("in use"));
    let failed = Case {
        volume: failed,
        ..bound()
    };
    let none = Value::Null;
    expect([
        (attached(true, none.clone(), none.clone()), "Bound"),
        (
            attached(false, error(), none.clone()),
            "Bound STUCK 8s: attaching to node n1: busy",
        ),
        (attached(true, error(), none.clone()), "Bound"),
        (
            attached(true, none, error()),
            "Bound STUCK 8s: detaching from node n1: busy",
        ),
        (failed, "Bound STUCK: PersistentVolume pv failed: in use"),
    ]);
}
