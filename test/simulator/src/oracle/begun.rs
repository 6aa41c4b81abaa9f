//! What users change of a claim begins soon in a calm world. Controllers look again after many minutes
//! at all claims, so that after a quiet time none is left which they overlooked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{is_deleting, items, name, text, uid};
use crate::oracle::objects::state;
use crate::oracle::ownership::is_named_after_claim;
use crate::users::bytes;
use crate::{shim, trace};

/// The longest time until a controller says that it has begun. Controllers look again after ten minutes.
const SOON: Duration = Duration::from_secs(120);

/// The changes of claims that no controller has begun.
#[derive(Default)]
pub(super) struct Unbegun {
    /// When each was first seen, by claim and request. `None` once it was reported.
    since: BTreeMap<String, Option<Duration>>,
}

impl Unbegun {
    /// Checks the claims of volumes that hostloop has made.
    pub(super) fn check(
        &mut self,
        cluster: &Cluster,
        volumes: &[Arc<Value>],
        claims: &[Arc<Value>],
    ) {
        // Elsewhere, a node may be away.
        if !cluster.has_no_troubles() {
            return;
        }
        let made = volumes.iter().filter(|volume| is_named_after_claim(volume));
        let made: BTreeSet<&str> = made
            .map(|volume| text(volume, "/spec/claimRef/uid"))
            .collect();
        let mut open = BTreeMap::new();
        for claim in claims.iter().filter(|claim| made.contains(uid(claim))) {
            if let Some(request) = unbegun(claim) {
                open.insert(format!("{} {request}", uid(claim)), claim);
            }
        }
        for change in self.late(shim::now(), open.keys()) {
            if let Some(claim) = open.get(&change) {
                trace::violation(format!(
                    "not begun: claim {}, {} s after its change: {}",
                    name(claim),
                    SOON.as_secs(),
                    state(claim)
                ));
            }
        }
    }

    /// The changes that are late now, each once, of all that no controller has begun.
    fn late<'a>(&mut self, now: Duration, open: impl Iterator<Item = &'a String>) -> Vec<String> {
        let mut known = std::mem::take(&mut self.since);
        let mut late = Vec::new();
        for change in open {
            let mut since = known.remove(change).unwrap_or(Some(now));
            if since.is_some_and(|since| now > since + SOON) {
                late.push(change.clone());
                since = None;
            }
            self.since.insert(change.clone(), since);
        }
        late
    }
}

/// What a bound claim requests and does not have, if nothing in its status says that this has begun.
fn unbegun(claim: &Value) -> Option<String> {
    let (spec, status) = (&claim["spec"], &claim["status"]);
    let is_said = items(claim, "/status/conditions").next().is_some();
    if status["phase"] != "Bound" || is_deleting(claim) || is_said {
        return None;
    }
    let requested = &spec["resources"]["requests"]["storage"];
    let begun = &status["allocatedResources"]["storage"];
    let has = bytes(&status["capacity"]["storage"]).max(bytes(begun));
    if bytes(requested) > has {
        return Some(requested.to_string());
    }
    let class = &spec["volumeAttributesClassName"];
    let is_wanted = !text(class, "").is_empty();
    let is_known = *class == status["currentVolumeAttributesClassName"]
        || !status["modifyVolumeStatus"].is_null();
    (is_wanted && !is_known).then(|| class.to_string())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::as_requested(json!({}), json!({}), None)]
    #[case::larger(json!({"resources": {"requests": {"storage": "9Mi"}}}), json!({}), Some("\"9Mi\""))]
    #[case::growing(
        json!({"resources": {"requests": {"storage": "9Mi"}}}),
        json!({"allocatedResources": {"storage": "9Mi"}}),
        None
    )]
    #[case::growing_to_less(
        json!({"resources": {"requests": {"storage": "9Mi"}}}),
        json!({"allocatedResources": {"storage": "5Mi"}}),
        Some("\"9Mi\"")
    )]
    #[case::refused(
        json!({"resources": {"requests": {"storage": "9Mi"}}}),
        json!({"conditions": [{"type": "ControllerResizeError"}]}),
        None
    )]
    #[case::unbound(
        json!({"resources": {"requests": {"storage": "9Mi"}}}),
        json!({"phase": "Pending"}),
        None
    )]
    #[case::other_attributes(json!({"volumeAttributesClassName": "b"}), json!({}), Some("\"b\""))]
    #[case::modified(
        json!({"volumeAttributesClassName": "b"}),
        json!({"currentVolumeAttributesClassName": "b"}),
        None
    )]
    #[case::modifying(
        json!({"volumeAttributesClassName": "b"}),
        json!({"modifyVolumeStatus": {"status": "Pending"}}),
        None
    )]
    fn what_no_controller_has_begun(
        #[case] spec: Value,
        #[case] status: Value,
        #[case] expected: Option<&str>,
    ) {
        let mut claim = json!({"spec": {"resources": {"requests": {"storage": "4Mi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "4Mi"}}});
        for (part, change) in [("spec", spec), ("status", status)] {
            for (field, value) in change.as_object().into_iter().flatten() {
                claim[part][field] = value.clone();
            }
        }
        assert_eq!(unbegun(&claim).as_deref(), expected);
    }

    #[test]
    fn a_change_is_late_once() {
        let mut unbegun = Unbegun::default();
        let second = Duration::from_secs(1);
        let change = "claim 9Mi".to_owned();
        for (now, is_open, expected) in [
            (10_u32, true, 0),
            (100, true, 0),
            (131, true, 1),
            (140, true, 0),
            // It has begun, and another change is the same.
            (150, false, 0),
            (160, true, 0),
            (300, true, 1),
        ] {
            let open = is_open.then_some(&change);
            let late = unbegun.late(now * second, open.into_iter());
            assert_eq!(late.len(), expected, "{now}");
        }
    }
}
