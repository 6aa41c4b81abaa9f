//! What a cluster has at one moment, as it is.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::Records;

/// The users' namespace.
pub const NAMESPACE: &str = "u";

/// The kinds that are compared, and their plurals.
pub const KINDS: [(&str, &str); 7] = [
    ("Namespace", "namespaces"),
    ("PersistentVolumeClaim", "persistentvolumeclaims"),
    ("PersistentVolume", "persistentvolumes"),
    ("Pod", "pods"),
    ("VolumeSnapshot", "volumesnapshots"),
    ("VolumeSnapshotContent", "volumesnapshotcontents"),
    ("Event", "events"),
];

/// The objects of a cluster, and the records in the pool of its node.
#[derive(Clone, Debug, Default)]
pub struct FoundObjects {
    objects: BTreeMap<String, Vec<Value>>,
    pub(crate) records: Records,
}

impl FoundObjects {
    /// Nothing but these records.
    pub fn new(records: Records) -> FoundObjects {
        FoundObjects {
            objects: BTreeMap::new(),
            records,
        }
    }

    /// Adds the objects of a kind, but for those of other namespaces. Events about cluster-wide
    /// objects are in a namespace of Kubernetes.
    pub fn add(&mut self, kind: &str, objects: Vec<Value>) {
        let ours = objects.into_iter().filter(|object| is_ours(kind, object));
        let all = self.objects.entry(kind.to_owned()).or_default();
        all.extend(ours);
    }

    /// The objects of a kind.
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.get(kind).into_iter().flatten()
    }
}

fn is_ours(kind: &str, object: &Value) -> bool {
    let metadata = &object["metadata"];
    match kind {
        "Namespace" => metadata["name"] == NAMESPACE,
        "Event" => true,
        _ => metadata["namespace"].is_null() || metadata["namespace"] == NAMESPACE,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::ours("Pod", json!({"metadata": {"name": "p", "namespace": "u"}}), 1)]
    #[case::of_another_namespace("Pod", json!({"metadata": {"name": "p", "namespace": "x"}}), 0)]
    #[case::cluster_wide("PersistentVolume", json!({"metadata": {"name": "v"}}), 1)]
    #[case::our_namespace("Namespace", json!({"metadata": {"name": "u"}}), 1)]
    #[case::another_namespace("Namespace", json!({"metadata": {"name": "default"}}), 0)]
    #[case::event_about_a_volume("Event", json!({"metadata": {"namespace": "default"}}), 1)]
    fn only_what_is_the_users_counts(
        #[case] kind: &str,
        #[case] object: Value,
        #[case] expected: usize,
    ) {
        let mut found = FoundObjects::default();
        found.add(kind, vec![object]);
        assert_eq!(found.all(kind).count(), expected);
    }
}
