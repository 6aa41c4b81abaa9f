//! A claim does not return at once to the node that has just given it back. The node had no room, and
//! has published none since: each try costs a call and an event, and helps no one.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop_fake_api::{FakeApi, Write};

use crate::machine::node_of;
use crate::model::view::{SELECTED_NODE, annotation, name, text, uid};
use crate::{shim, trace};

/// A leader passes over such a node for a minute, and may have known of it a little earlier than the
/// API server.
const SOON: Duration = Duration::from_secs(45);
/// The longest time until a leader knows what is written, where nothing fails.
const LAG: Duration = Duration::from_secs(2);

/// Watches from now on which nodes a leader chooses, in a world with only one leader which never dies.
pub(crate) fn watch(api: &FakeApi) {
    let mut given_back = GivenBack::default();
    api.on_write(move |write| {
        if let Some(breach) = given_back.note(write, shim::now()) {
            trace::violation(breach);
        }
    });
}

/// The claims that nodes have given back.
#[derive(Default)]
struct GivenBack {
    /// The node that had a claim, and when it gave it back, by the UID of the claim.
    claims: BTreeMap<String, (&'static str, Duration)>,
    /// When a node last said how much room it has, or a class changed.
    changed: Option<Duration>,
}

impl GivenBack {
    /// Notes a write. Returns what it breaks.
    fn note(&mut self, write: &Write, now: Duration) -> Option<String> {
        let object = write.new.or(write.old)?;
        match text(object, "/kind") {
            "CSIStorageCapacity" | "StorageClass" => {
                self.changed = Some(now);
                return None;
            }
            "PersistentVolumeClaim" => {}
            _ => return None,
        }
        let claim = write.new?;
        let had = write.old.and_then(|old| annotation(old, SELECTED_NODE));
        match (had, annotation(claim, SELECTED_NODE)) {
            (Some(had), None) => {
                let node = node_of(write.who).filter(|node| *node == had)?;
                self.claims.insert(uid(claim).to_owned(), (node, now));
                None
            }
            (None, Some(node)) if write.who.starts_with("leader") => {
                let (last, since) = self.claims.remove(uid(claim))?;
                (last == node && self.is_pointless(since, now)).then(|| {
                    format!(
                        "sent back: {} chooses {node} for claim {}, {} ms after that node gave it \
                         back, and it has published no other room",
                        write.who,
                        name(claim),
                        (now - since).as_millis()
                    )
                })
            }
            _ => None,
        }
    }

    /// True if nothing has changed since a node gave a claim back, a short time ago.
    fn is_pointless(&self, since: Duration, now: Duration) -> bool {
        let is_unchanged = self.changed.is_none_or(|changed| changed + LAG < since);
        now < since + SOON && is_unchanged
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn claim(node: Option<&str>) -> Value {
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "c1", "uid": "1",
            "annotations": node.map(|node| json!({SELECTED_NODE: node}))}})
    }

    /// What is wrong with a write, so many seconds after the start.
    fn noted(
        given_back: &mut GivenBack,
        who: &str,
        (old, new): (&Value, &Value),
        seconds: u64,
    ) -> Option<String> {
        let write = Write {
            who,
            method: "PATCH",
            path: "/an/object",
            old: Some(old),
            new: Some(new),
        };
        given_back.note(&write, Duration::from_secs(seconds))
    }

    #[rstest]
    #[case::at_once("node", "n1", None, 101, true)]
    #[case::later("node", "n1", None, 160, false)]
    #[case::to_another("node", "n2", None, 101, false)]
    #[case::by_its_user("user", "n1", None, 101, false)]
    #[case::after_old_news("node", "n1", Some(50), 101, true)]
    #[case::after_news("node", "n1", Some(99), 101, false)]
    fn a_claim_that_was_given_back(
        #[case] by: &str,
        #[case] to: &str,
        #[case] published: Option<u64>,
        #[case] seconds: u64,
        #[case] expected: bool,
    ) {
        let mut given_back = GivenBack::default();
        let capacity = json!({"kind": "CSIStorageCapacity"});
        if let Some(at) = published {
            let news = noted(&mut given_back, "node", (&capacity, &capacity), at);
            assert_eq!(news, None);
        }
        let (on_node, open) = (claim(Some("n1")), claim(None));
        assert_eq!(noted(&mut given_back, by, (&on_node, &open), 100), None);
        let chosen = claim(Some(to));
        let wrong = noted(&mut given_back, "leader", (&open, &chosen), seconds);
        assert_eq!(wrong.is_some(), expected);
    }
}
