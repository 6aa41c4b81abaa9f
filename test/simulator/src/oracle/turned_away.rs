//! A claim that is made before its pods does not go from node to node without end: where it found no
//! room, it is tried again after waits that grow.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hostloop_fake_api::{FakeApi, Write};
use serde_json::Value;

use crate::model::view::{SELECTED_NODE, annotation, name, text, uid};
use crate::users::is_immediate;
use crate::{shim, trace};

/// For this long, a rejection counts.
const RECENT: Duration = Duration::from_secs(600);
/// In that time, a claim is rejected less often. A node rejects it about ten times, and for a new leader
/// again.
const MOST: usize = 150;

/// Watches from now on how often nodes turn a claim away.
pub(crate) fn watch(api: &FakeApi) {
    let mut rejections = Rejections::default();
    api.on_write(move |write| {
        let Some(claim) = rejected(write) else {
            return;
        };
        if rejections.add(uid(claim), shim::now()) {
            trace::violation(format!(
                "turned away too often: claim {} lost its node {MOST} times in {} s",
                name(claim),
                RECENT.as_secs()
            ));
        }
    });
}

/// The times at which claims lost their nodes, by UID.
#[derive(Default)]
struct Rejections(BTreeMap<String, VecDeque<Duration>>);

impl Rejections {
    /// Adds one. Returns true if there are too many now, once.
    fn add(&mut self, claim: &str, now: Duration) -> bool {
        let times = self.0.entry(claim.to_owned()).or_default();
        times.retain(|time| now < *time + RECENT);
        times.push_back(now);
        times.len() == MOST
    }
}

/// The claim that loses its node with this write. For a claim that waits for its first pod, the
/// scheduler chooses, which tries again soon.
fn rejected<'a>(write: &Write<'a>) -> Option<&'a Value> {
    let claim = write.new?;
    let had = write.old.and_then(|old| annotation(old, SELECTED_NODE));
    let loses_node = had.is_some() && annotation(claim, SELECTED_NODE).is_none();
    let is_claim = text(claim, "/kind") == "PersistentVolumeClaim";
    let is_chosen_by_leader = is_immediate(text(claim, "/spec/storageClassName"));
    (is_claim && loses_node && is_chosen_by_leader).then_some(claim)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::turned_away("ext4-now", Some("n1"), None, true)]
    #[case::chosen("ext4-now", None, Some("n1"), false)]
    #[case::unchanged("ext4-now", Some("n1"), Some("n1"), false)]
    #[case::waits_for_a_pod("ext4", Some("n1"), None, false)]
    fn a_claim_loses_its_node(
        #[case] class: &str,
        #[case] before: Option<&str>,
        #[case] after: Option<&str>,
        #[case] expected: bool,
    ) {
        let claim = |node: Option<&str>| {
            let annotations = node.map_or(json!({}), |node| json!({SELECTED_NODE: node}));
            json!({"kind": "PersistentVolumeClaim", "spec": {"storageClassName": class},
                "metadata": {"annotations": annotations}})
        };
        let (old, new) = (claim(before), claim(after));
        let write = Write {
            who: "node",
            method: "PATCH",
            path: "/api/v1/namespaces/u/persistentvolumeclaims/c1",
            old: Some(&old),
            new: Some(&new),
        };
        assert_eq!(rejected(&write).is_some(), expected);
    }

    #[test]
    fn rejections_of_a_claim_are_counted_for_a_while() {
        for (each, expected) in [(Duration::from_secs(1), 1), (Duration::from_secs(5), 0)] {
            let mut rejections = Rejections::default();
            let times = (0..500).map(|number| each * number);
            let found = times.filter(|now| {
                rejections.add("other", *now * 9);
                rejections.add("claim", *now)
            });
            assert_eq!(found.count(), expected, "{each:?}");
        }
    }
}
