//! Whose a content is, where every node has loops of its own.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::runtime::Scope;
use crate::runtime::scope::MANAGED_BY;

/// Whose a content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// These loops'.
    Here,
    /// Another node's.
    Elsewhere,
    /// Who knows. The driver may.
    Unknown,
}

/// The longest value a label can have.
const LABEL_MAX: usize = 63;

/// Whose a content is by its label, and else by the PersistentVolumes of what it is made from
/// (several may share one handle). One without an affinity says nothing: it would be everybody's.
pub(super) fn owner<'a>(
    scope: &Scope,
    labels: &BTreeMap<String, String>,
    sources: impl IntoIterator<Item = &'a PersistentVolume>,
) -> Owner {
    let whose = |within: bool| {
        if within {
            Owner::Here
        } else {
            Owner::Elsewhere
        }
    };
    if *scope == Scope::Cluster {
        return Owner::Here;
    }
    if labels.contains_key(MANAGED_BY) {
        return whose(scope.has_content(labels, None));
    }
    let mut telling = sources.into_iter().filter(|volume| {
        let spec = volume.spec.as_ref();
        let affinity = spec.and_then(|spec| spec.node_affinity.as_ref());
        affinity.is_some_and(|affinity| affinity.required.is_some())
    });
    match telling.next() {
        None => Owner::Unknown,
        Some(volume) => whose(scope.has_content(labels, Some(volume))),
    }
}

/// Whose something is that is made from several: it is where all of them are.
pub(super) fn of_all(owners: &[Owner]) -> Owner {
    if owners.contains(&Owner::Elsewhere) {
        return Owner::Elsewhere;
    }
    match owners.iter().all(|owner| *owner == Owner::Here) {
        true => Owner::Here,
        false => Owner::Unknown,
    }
}

/// The label that says from now on whose a content is, if it lacks one: its volume may be gone
/// when it is deleted.
pub(super) fn label<'a>(scope: &'a Scope, labels: &BTreeMap<String, String>) -> Option<&'a str> {
    let node = scope.node()?;
    (!labels.contains_key(MANAGED_BY) && node.len() <= LABEL_MAX).then_some(node)
}

/// The driver's handle of a volume, if it is this driver's.
pub(super) fn handle(volume: &PersistentVolume, driver: &str) -> Option<String> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == driver).then(|| csi.volume_handle.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(values: &[&str]) -> PersistentVolume {
        let affinity = match values {
            [] => Value::Null,
            values => json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
                [{"key": "t/node", "operator": "In", "values": values}]}]}}),
        };
        serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": {
            "csi": {"driver": "d", "volumeHandle": "h"}, "nodeAffinity": affinity}}))
        .expect("a volume")
    }

    #[test]
    fn whose_contents_are() {
        let here = Scope::Node {
            name: "n1".to_owned(),
            segments: BTreeMap::from([("t/node".to_owned(), "n1".to_owned())]),
        };
        let label = |node: &str| BTreeMap::from([(MANAGED_BY.to_owned(), node.to_owned())]);
        let none = BTreeMap::new();
        for (labels, sources, expected) in [
            (label("n1"), vec![volume(&["n2"])], Owner::Here),
            (label("n2"), vec![volume(&["n1"])], Owner::Elsewhere),
            (none.clone(), vec![volume(&["n1"])], Owner::Here),
            (none.clone(), vec![volume(&["n2"])], Owner::Elsewhere),
            (none.clone(), vec![volume(&[])], Owner::Unknown),
            (
                none.clone(),
                vec![volume(&[]), volume(&["n2"])],
                Owner::Elsewhere,
            ),
            (none.clone(), vec![], Owner::Unknown),
        ] {
            assert_eq!(owner(&here, &labels, &sources), expected, "{labels:?}");
            assert_eq!(owner(&Scope::Cluster, &labels, &sources), Owner::Here);
        }
    }

    #[test]
    fn whose_a_whole_is() {
        use Owner::*;
        for (owners, whole) in [
            (&[Here, Here][..], Here),
            (&[Here, Elsewhere], Elsewhere),
            (&[Here, Unknown], Unknown),
            (&[Unknown, Elsewhere], Elsewhere),
        ] {
            assert_eq!(of_all(owners), whole, "{owners:?}");
        }
    }

    #[test]
    fn labels_where_there_are_none() {
        let node = |name: &str| Scope::Node {
            name: name.to_owned(),
            segments: BTreeMap::new(),
        };
        let labelled = BTreeMap::from([(MANAGED_BY.to_owned(), "n2".to_owned())]);
        let none = BTreeMap::new();
        assert_eq!(label(&node("n1"), &none), Some("n1"));
        assert_eq!(label(&node("n1"), &labelled), None);
        assert_eq!(label(&node(&"n".repeat(64)), &none), None);
        assert_eq!(label(&Scope::Cluster, &none), None);
    }

    #[test]
    fn handles_of_the_driver() {
        assert_eq!(handle(&volume(&[]), "d").as_deref(), Some("h"));
        assert_eq!(handle(&volume(&[]), "other"), None);
        assert_eq!(handle(&PersistentVolume::default(), "d"), None);
    }
}
