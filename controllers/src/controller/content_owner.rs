//! Decides which node owns a content if every node runs a snapshotter.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::api::pv;
use crate::api::scope::{MANAGED_BY, Scope, node_label};
use crate::controller::owner::Ownership;
use crate::csi::Pools;

/// Decides which node owns a content, by its label and the pool in its handle. They must agree: a
/// node can write another node's snapshot handle into its own content. Without either, the source
/// PersistentVolumes decide (several may share one handle). A volume without an affinity is
/// ignored, as every node would claim it.
pub(crate) fn owner<'a>(
    scope: &Scope,
    pools: &Pools,
    labels: &BTreeMap<String, String>,
    handle: Option<&str>,
    sources: impl IntoIterator<Item = &'a PersistentVolume>,
) -> Ownership {
    if *scope == Scope::Cluster {
        return Ownership::Local;
    }
    let by_handle = handle.and_then(|handle| pools.own(handle));
    let is_labelled = labels.contains_key(MANAGED_BY);
    let by_label = is_labelled.then(|| scope.has_content(labels, None));
    if by_handle.is_some() || by_label.is_some() {
        return Ownership::of(by_handle != Some(false) && by_label != Some(false));
    }
    let mut placed = sources
        .into_iter()
        .filter(|volume| pv::node_terms(volume).is_some());
    match placed.next() {
        None => Ownership::Unknown,
        Some(volume) => Ownership::of(scope.has_content(labels, Some(volume))),
    }
}

impl Ownership {
    fn of(is_within: bool) -> Ownership {
        if is_within {
            Ownership::Local
        } else {
            Ownership::Remote
        }
    }
}

/// Combines the owners of several parts: remote if one part is remote, and local if all parts are.
pub(crate) fn of_all(owners: &[Ownership]) -> Ownership {
    if owners.contains(&Ownership::Remote) {
        return Ownership::Remote;
    }
    if owners.iter().all(|owner| *owner == Ownership::Local) {
        Ownership::Local
    } else {
        Ownership::Unknown
    }
}

/// The label with the owner of a content, if the content lacks it. The content's volume may be gone
/// when the content is deleted.
pub(crate) fn label(scope: &Scope, labels: &BTreeMap<String, String>) -> Option<String> {
    let node = scope.node()?;
    (!labels.contains_key(MANAGED_BY)).then(|| node_label(node))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    fn volume(values: &[&str]) -> PersistentVolume {
        let affinity = match values {
            [] => Value::Null,
            values => testing::affinity("t/node", values),
        };
        let affinity = json!({"spec": {"nodeAffinity": affinity}});
        testing::read(testing::with(testing::volume("v", "d", "h"), affinity))
    }

    #[test]
    fn owners_of_contents() {
        let here = testing::node_scope("n1", "t/node");
        let label = |node: &str| BTreeMap::from([(MANAGED_BY.to_owned(), node.to_owned())]);
        let none = BTreeMap::new();
        let reported = || Pools::reported(|| vec!["a1".to_owned()]);
        let (ours, theirs) = (Some("snap-a1-0"), Some("snap-b2-0"));
        for (pools, labels, handle, sources, expected) in [
            (reported(), none.clone(), ours, vec![], Ownership::Local),
            (reported(), label("n1"), ours, vec![], Ownership::Local),
            (reported(), label("n2"), ours, vec![], Ownership::Remote),
            (
                reported(),
                label("n2"),
                ours,
                vec![volume(&["n1"])],
                Ownership::Remote,
            ),
            (
                reported(),
                label("n1"),
                theirs,
                vec![volume(&["n1"])],
                Ownership::Remote,
            ),
            (reported(), label("n1"), None, vec![], Ownership::Local),
            (
                Pools::default(),
                label("n1"),
                theirs,
                vec![],
                Ownership::Local,
            ),
            (
                Pools::default(),
                none.clone(),
                ours,
                vec![],
                Ownership::Unknown,
            ),
        ] {
            let found = owner(&here, &pools, &labels, handle, &sources);
            assert_eq!(found, expected, "{pools:?} {labels:?} {handle:?}");
        }
        for (labels, sources, expected) in [
            (label("n1"), vec![volume(&["n2"])], Ownership::Local),
            (label("n2"), vec![volume(&["n1"])], Ownership::Remote),
            (none.clone(), vec![volume(&["n1"])], Ownership::Local),
            (none.clone(), vec![volume(&["n2"])], Ownership::Remote),
            (none.clone(), vec![volume(&[])], Ownership::Unknown),
            (
                none.clone(),
                vec![volume(&[]), volume(&["n2"])],
                Ownership::Remote,
            ),
            (none.clone(), vec![], Ownership::Unknown),
        ] {
            let pools = Pools::default();
            let of = |scope| owner(scope, &pools, &labels, None, &sources);
            assert_eq!(of(&here), expected, "{labels:?}");
            assert_eq!(of(&Scope::Cluster), Ownership::Local);
            // A leader without a node owns no content, but still recognizes contents without an
            // owner.
            let others = match expected {
                Ownership::Local => Ownership::Remote,
                side => side,
            };
            assert_eq!(of(&Scope::Leader), others, "{labels:?}");
        }
    }

    #[test]
    fn owners_of_groups() {
        use Ownership::*;
        for (owners, whole) in [
            (&[Local, Local][..], Local),
            (&[Local, Remote], Remote),
            (&[Local, Unknown], Unknown),
            (&[Unknown, Remote], Remote),
        ] {
            assert_eq!(of_all(owners), whole, "{owners:?}");
        }
    }

    #[test]
    fn labels_where_there_are_none() {
        let node = |name: &str| testing::node_scope(name, "t/node");
        let labelled = BTreeMap::from([(MANAGED_BY.to_owned(), "n2".to_owned())]);
        let none = BTreeMap::new();
        assert_eq!(label(&node("n1"), &none).as_deref(), Some("n1"));
        assert_eq!(label(&node("n1"), &labelled), None);
        let long = label(&node(&"n".repeat(64)), &none);
        assert_eq!(long.map(|label| label.len()), Some(63));
        assert_eq!(label(&Scope::Cluster, &none), None);
    }
}
