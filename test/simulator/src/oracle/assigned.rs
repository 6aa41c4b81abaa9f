//! A node makes volumes only for claims that were given to it: each names its node, by the scheduler or
//! a leader. Without that, all nodes would make a volume for one claim.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_fake_api::{FakeApi, Write};
use serde_json::Value;

use crate::machine::node_of;
use crate::model::view::{SELECTED_NODE, annotation, name, text, uid};
use crate::oracle::ownership::is_named_after_claim;
use crate::trace;

/// The nodes that each claim has ever named, by the claim's UID. A process may know of an earlier one:
/// it may not have seen the change, or the API server went back.
#[derive(Default)]
struct Assignments(BTreeMap<String, BTreeSet<String>>);

/// Watches from now on for which claims nodes make volumes.
pub(crate) fn watch(api: &FakeApi) {
    let mut assignments = Assignments::default();
    api.on_write(move |write| {
        if let Some(breach) = assignments.breach(write) {
            trace::violation(breach);
        }
    });
}

impl Assignments {
    /// Notes what a write says of a claim. What it breaks, if it makes a volume.
    fn breach(&mut self, write: &Write) -> Option<String> {
        let object = write.new?;
        match text(object, "/kind") {
            "PersistentVolumeClaim" => {
                self.note(object);
                None
            }
            "PersistentVolume" if write.old.is_none() => self.of_new_volume(write.who, object),
            _ => None,
        }
    }

    fn note(&mut self, claim: &Value) {
        if let Some(node) = annotation(claim, SELECTED_NODE) {
            let nodes = self.0.entry(uid(claim).to_owned()).or_default();
            nodes.insert(node.to_owned());
        }
    }

    fn of_new_volume(&self, who: &str, volume: &Value) -> Option<String> {
        let node = node_of(who)?;
        let named = self.0.get(text(volume, "/spec/claimRef/uid"));
        let is_given = named.is_some_and(|nodes| nodes.contains(node));
        (is_named_after_claim(volume) && !is_given).then(|| {
            format!(
                "not given to it: {who} has made {} for claim {}, which never named {node}",
                name(volume),
                text(volume, "/spec/claimRef/name")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cluster::DRIVER;
    use crate::model::view::PROVISIONED_BY;

    fn breach(assignments: &mut Assignments, who: &str, new: &Value) -> Option<String> {
        assignments.breach(&Write {
            who,
            method: "POST",
            path: "",
            old: None,
            new: Some(new),
        })
    }

    #[rstest]
    #[case::given("node", &["n1"], false)]
    #[case::given_earlier("node", &["n1", "n2"], false)]
    #[case::given_to_another("node-2", &["n1"], true)]
    #[case::given_to_none("node", &[], true)]
    #[case::by_others("user", &[], false)]
    fn volumes_for_claims(#[case] who: &str, #[case] nodes: &[&str], #[case] expected: bool) {
        let mut assignments = Assignments::default();
        let claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"uid": "1"}});
        assert_eq!(breach(&mut assignments, "user", &claim), None);
        for node in nodes {
            let mut given = claim.clone();
            given["metadata"]["annotations"] = json!({SELECTED_NODE: node});
            assert_eq!(breach(&mut assignments, "leader", &given), None);
        }
        let volume = json!({"kind": "PersistentVolume", "metadata": {"name": "hostloop-1",
                "annotations": {PROVISIONED_BY: DRIVER}},
            "spec": {"storageClassName": "ext4", "claimRef": {"name": "c1", "uid": "1"}}});
        let found = breach(&mut assignments, who, &volume);
        assert_eq!(found.is_some(), expected, "{found:?}");
    }
}
