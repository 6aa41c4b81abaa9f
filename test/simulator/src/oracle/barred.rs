//! A volume that no pod was scheduled for goes to no node that keeps ordinary pods off: its pods could
//! not follow it.

use std::time::Duration;

use hostloop_fake_api::{FakeApi, Write};

use crate::cluster::Bars;
use crate::model::view::{SELECTED_NODE, annotation, name, text};
use crate::oracle::objects::has_source;
use crate::{shim, trace};

/// How long a leader may not know of a bar: the API server may be away at once. Outages are shorter.
const LAG: Duration = Duration::from_secs(900);

/// Watches from now on which nodes leaders choose for claims.
pub(crate) fn watch(api: &FakeApi, bars: &Bars) {
    let bars = bars.clone();
    api.on_write(move |write| {
        let barred = chosen(write).and_then(|node| Some((node, bars.since(node)?)));
        let now = shim::now();
        if let Some((node, since)) = barred.filter(|(_, since)| is_known(*since, now)) {
            trace::violation(format!(
                "not for ordinary pods: {} chooses {node} for claim {}, {} s after the node's bar",
                write.who,
                write.new.map(name).unwrap_or_default(),
                (now - since).as_secs()
            ));
        }
    });
}

/// True if each leader knows what has been so since then.
fn is_known(since: Duration, now: Duration) -> bool {
    now >= since + LAG
}

/// The node that a leader chooses with this write, for a claim for a new volume. A copy is made where
/// its source is.
fn chosen<'a>(write: &Write<'a>) -> Option<&'a str> {
    let claim = write.new?;
    let node = annotation(claim, SELECTED_NODE)?;
    let known = write.old.and_then(|old| annotation(old, SELECTED_NODE));
    let is_new = known != Some(node) && text(claim, "/kind") == "PersistentVolumeClaim";
    (is_new && write.who.starts_with("leader") && !has_source(claim)).then_some(node)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::by_the_leader("leader-2", None, json!({}), Some("n2"))]
    #[case::instead_of_another("leader", Some("n1"), json!({}), Some("n2"))]
    #[case::unchanged("leader", Some("n2"), json!({}), None)]
    #[case::by_the_scheduler("scheduler", None, json!({}), None)]
    #[case::for_a_copy("leader", None, json!({"dataSource": {"kind": "VolumeSnapshot"}}), None)]
    fn a_leader_chooses_a_node(
        #[case] who: &str,
        #[case] before: Option<&str>,
        #[case] spec: Value,
        #[case] expected: Option<&str>,
    ) {
        let claim = |node: Option<&str>| {
            json!({"kind": "PersistentVolumeClaim", "spec": spec,
                "metadata": {"annotations": {SELECTED_NODE: node}}})
        };
        let (old, new) = (claim(before), claim(Some("n2")));
        let write = Write {
            who,
            method: "PATCH",
            path: "/api/v1/namespaces/u/persistentvolumeclaims/c1",
            old: Some(&old),
            new: Some(&new),
        };
        assert_eq!(chosen(&write), expected);
    }

    #[test]
    fn each_leader_knows_of_a_bar_after_a_while() {
        let since = Duration::from_secs(100);
        assert!(!is_known(since, since + LAG / 2));
        assert!(is_known(since, since + LAG));
    }
}
