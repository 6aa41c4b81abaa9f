//! The admission policies, which hold each node pod to its own node's objects.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};

use super::known;
use crate::check::facts::{Fact, Facts};
use crate::check::line::{Line, Mark, names};

/// The policies in the manifests. Each has a binding that denies.
pub(super) const POLICIES: [&str; 12] = [
    "hostloop-attachments",
    "hostloop-bound-claims",
    "hostloop-capacities",
    "hostloop-capacity-classes",
    "hostloop-claims",
    "hostloop-contents",
    "hostloop-events",
    "hostloop-metadata",
    "hostloop-new-volumes",
    "hostloop-nodes",
    "hostloop-snapshots",
    "hostloop-volumes",
];

const APPLY: &str = "Without it, a stolen node's token can change other nodes' objects. Run \
                     `kubectl hostloop install` again.";

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let both = known("Admission policies", &facts.policies)
        .and_then(|policies| Ok((policies, known("Bindings of policies", &facts.bindings)?)));
    match both {
        Ok((policies, bindings)) => {
            let mut lines = policy_lines(policies, bindings);
            // A missing policy explains an accepted write.
            if lines.iter().all(|line| line.mark != Mark::Failed) {
                lines.push(enforced(&facts.enforced));
            }
            lines
        }
        Err(line) => vec![line],
    }
}

fn enforced(enforced: &Fact<bool>) -> Line {
    match known("A trial of the policies", enforced) {
        Ok(true) => Line::ok("The API server rejects a write that they deny (a dry run)"),
        Ok(false) => Line::failed(
            "The API server accepts a write that they deny (a dry run)",
            "ValidatingAdmissionPolicy may be off in the API server (--disable-admission-plugins).",
        ),
        Err(line) => line,
    }
}

fn policy_lines(
    policies: &[ValidatingAdmissionPolicy],
    bindings: &[ValidatingAdmissionPolicyBinding],
) -> Vec<Line> {
    let policies: BTreeMap<&str, &ValidatingAdmissionPolicy> = policies
        .iter()
        .filter_map(|p| Some((p.metadata.name.as_deref()?, p)))
        .collect();
    let states: Vec<(&str, PolicyState)> = POLICIES
        .iter()
        .map(|name| (*name, state(policies.get(*name).copied(), bindings, name)))
        .collect();
    let mut lines = Vec::new();
    for (state, what, advice) in [
        (PolicyState::Missing, "do not exist", APPLY),
        (PolicyState::Unbound, "have no binding that denies", APPLY),
    ] {
        let bad = in_state(&states, state);
        if !bad.is_empty() {
            lines.push(Line::failed(
                format!("Policies {what}: {}", names(bad)),
                advice,
            ));
        }
    }
    for (state, what, advice) in [
        (
            PolicyState::Unseen,
            "The controller manager has not checked policies",
            "Run the check again. If this stays, look at the log of kube-controller-manager.",
        ),
        (
            PolicyState::Doubted,
            "The controller manager warns about expressions of policies",
            "Look at: kubectl get validatingadmissionpolicies NAME -o \
             jsonpath={.status.typeChecking}",
        ),
    ] {
        let bad = in_state(&states, state);
        if !bad.is_empty() {
            lines.push(Line::warning(format!("{what}: {}", names(bad)), advice));
        }
    }
    let good = in_state(&states, PolicyState::InForce).len();
    if good == POLICIES.len() {
        lines.push(Line::ok(format!("{good} admission policies are in force")));
    }
    lines
}

/// The policies in a state.
fn in_state<'a>(states: &[(&'a str, PolicyState)], wanted: PolicyState) -> Vec<&'a str> {
    states
        .iter()
        .filter(|(_, state)| *state == wanted)
        .map(|(name, _)| *name)
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyState {
    /// The policy does not exist.
    Missing,
    /// No binding of it denies.
    Unbound,
    /// The controller manager has not checked the types of its newest generation.
    Unseen,
    /// The controller manager found problems with its types.
    Doubted,
    InForce,
}

fn state(
    policy: Option<&ValidatingAdmissionPolicy>,
    bindings: &[ValidatingAdmissionPolicyBinding],
    name: &str,
) -> PolicyState {
    let Some(policy) = policy else {
        return PolicyState::Missing;
    };
    let denies = bindings.iter().map(|binding| &binding.spec).any(|spec| {
        spec.policy_name == name
            && spec.match_resources.is_none()
            && spec
                .validation_actions
                .iter()
                .any(|action| action == "Deny")
    });
    if !denies {
        return PolicyState::Unbound;
    }
    let status = policy.status.as_ref();
    if status.and_then(|s| s.observed_generation) != policy.metadata.generation {
        return PolicyState::Unseen;
    }
    let warnings = status.and_then(|s| s.type_checking.as_ref()?.expression_warnings.as_ref());
    if warnings.is_some_and(|warnings| !warnings.is_empty()) {
        PolicyState::Doubted
    } else {
        PolicyState::InForce
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::check::decide::testing::{good, marks, object};
    use crate::check::facts::Unknown;
    use crate::check::line::Mark::*;

    /// The names in the manifests are the names here.
    #[test]
    fn all_policies_of_the_manifests_are_known() {
        let base = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/base");
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(base).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let mut policy = false;
            for line in text.lines() {
                match line {
                    "kind: ValidatingAdmissionPolicy" => policy = true,
                    line if line.starts_with("kind: ") => policy = false,
                    line => {
                        if let (true, Some(name)) = (policy, line.strip_prefix("  name: ")) {
                            found.insert(name.to_owned());
                        }
                    }
                }
            }
        }
        assert_eq!(found, POLICIES.map(str::to_owned).into());
    }

    fn policy(status: Value) -> ValidatingAdmissionPolicy {
        object(json!({"metadata": {"name": "p", "generation": 2}, "status": status}))
    }

    fn binding(spec: Value) -> ValidatingAdmissionPolicyBinding {
        object(json!({"metadata": {"name": "b"}, "spec": spec}))
    }

    #[rstest]
    #[case(json!({"policyName": "p", "validationActions": ["Deny"]}),
        json!({"observedGeneration": 2}), PolicyState::InForce)]
    #[case(json!({"policyName": "p", "validationActions": ["Audit"]}),
        json!({"observedGeneration": 2}), PolicyState::Unbound)]
    #[case(json!({"policyName": "q", "validationActions": ["Deny"]}),
        json!({"observedGeneration": 2}), PolicyState::Unbound)]
    #[case(json!({"policyName": "p", "validationActions": ["Deny"], "matchResources": {}}),
        json!({"observedGeneration": 2}), PolicyState::Unbound)]
    #[case(json!({"policyName": "p", "validationActions": ["Deny"]}),
        json!({"observedGeneration": 1}), PolicyState::Unseen)]
    #[case(json!({"policyName": "p", "validationActions": ["Deny"]}), json!({}), PolicyState::Unseen)]
    #[case(json!({"policyName": "p", "validationActions": ["Deny"]}),
        json!({"observedGeneration": 2, "typeChecking": {"expressionWarnings":
            [{"fieldRef": "spec", "warning": "w"}]}}), PolicyState::Doubted)]
    fn states(#[case] spec: Value, #[case] status: Value, #[case] expected: PolicyState) {
        assert_eq!(
            state(Some(&policy(status)), &[binding(spec)], "p"),
            expected
        );
    }

    #[test]
    fn policies_that_the_server_ignores_fail() {
        let mut facts = good();
        assert_eq!(marks(&lines(&facts)), [Passed, Passed]);
        facts.enforced = Ok(false);
        assert_eq!(marks(&lines(&facts)), [Passed, Failed]);
        facts.enforced = Err(Unknown::Forbidden("impersonate".into()));
        assert_eq!(marks(&lines(&facts)), [Passed, Skipped]);
    }

    #[test]
    fn a_missing_policy_fails() {
        let mut facts = good();
        facts.policies.as_mut().unwrap().pop();
        let lines = lines(&facts);
        assert_eq!(marks(&lines), [Failed]);
        assert_eq!(lines[0].text, "Policies do not exist: hostloop-volumes");
    }
}
