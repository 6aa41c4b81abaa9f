use serde_json::json;

use super::*;
use crate::testing::{read, with};

/// A bound claim that requests 4Gi and has 2Gi, with a volume of 2Gi.
fn facts(claim_patch: &Value) -> Facts {
    let claim = json!({
        "metadata": {"name": "c", "namespace": "ns"},
        "spec": {"volumeName": "pv", "resources": {"requests": {"storage": "4Gi"}}},
        "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
    });
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "2Gi"}}});
    Facts {
        claim: Arc::new(read(with(claim, claim_patch))),
        volume: Arc::new(read(volume)),
        final_error: false,
        in_use: false,
        wait: None,
    }
}

/// The status of a claim with an expansion to this size.
fn begun(size: &str, progress: &str) -> Value {
    json!({"status": {
        "allocatedResources": {"storage": size},
        "allocatedResourceStatuses": {"storage": progress},
    }})
}

/// An expansion to this size.
fn to(size: &str, same: bool) -> Step {
    Step::Expand {
        target: Quantity(size.to_owned()),
        same,
    }
}

#[test]
fn steps_for_claims() {
    let left = Some(Duration::from_secs(9));
    let (new, unbound) = (&json!({}), &json!({"status": {"phase": "Pending"}}));
    let enough = &json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let (progress, other) = (
        &begun("4Gi", CONTROLLER_IN_PROGRESS),
        &begun("8Gi", CONTROLLER_IN_PROGRESS),
    );
    let infeasible = &begun("4Gi", CONTROLLER_INFEASIBLE);
    let too_much = &begun("8Gi", CONTROLLER_INFEASIBLE);
    // The claim, whether the last error was final, the wait, and the step.
    for (claim, final_error, wait, expected) in [
        (unbound, false, None, Step::Nothing),
        (enough, false, None, Step::Nothing),
        (new, false, None, to("4Gi", false)),
        (progress, false, None, to("4Gi", true)),
        (other, false, None, to("8Gi", true)),
        (other, true, None, to("4Gi", false)),
        (infeasible, true, None, to("4Gi", true)),
        (infeasible, true, left, Step::Wait(Duration::from_secs(9))),
        // Another size need not wait.
        (too_much, true, left, to("4Gi", false)),
        (new, false, left, to("4Gi", false)),
    ] {
        let facts = Facts {
            final_error,
            wait,
            ..facts(claim)
        };
        assert_eq!(decide(&facts, true), expected, "{claim} {final_error}");
    }
}

#[test]
fn changes_that_need_work() {
    let status = |status: &str| json!({"status": {"phase": "Bound", "allocatedResourceStatuses": {"storage": status}}});
    let none = || json!({});
    let request = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
    let capacity = json!({"status": {"capacity": {"storage": "1Gi"}}});
    let bound = || json!({"status": {"phase": "Bound"}, "spec": {"volumeName": "pv"}});
    let (progress, pending) = (CONTROLLER_IN_PROGRESS, NODE_PENDING);
    for (old, new, expected) in [
        (none(), none(), false),
        (none(), json!({"metadata": {"labels": {"a": "b"}}}), false),
        (none(), request, true),
        (none(), capacity, true),
        (none(), bound(), true),
        (none(), status(progress), false),
        (status(progress), status(CONTROLLER_INFEASIBLE), false),
        (status(progress), status(pending), false),
        (status(pending), status("NodeResizeInProgress"), true),
        (status(pending), status("NodeResizeInfeasible"), true),
        (status(pending), bound(), true),
    ] {
        let claim = |patch: &Value| -> PersistentVolumeClaim {
            let base = json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}});
            read(with(base, patch))
        };
        assert_eq!(asks(&claim(&old), &claim(&new)), expected, "{old} -> {new}");
    }
}
