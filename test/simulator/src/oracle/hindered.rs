//! Volumes that users keep from being mounted, expanded or changed: calls about them need a secret
//! that there is not, or their mount options changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{annotation, text};
use crate::users::{REMOUNTED, path_in};

/// Where volumes name the secrets for calls.
const SECRETS: [&str; 4] = [
    "controllerExpandSecretRef",
    "nodeStageSecretRef",
    "nodePublishSecretRef",
    "nodeExpandSecretRef",
];

/// The handles of volumes with changed mount options. The driver may refuse the new ones, and may
/// have staged a volume with the old ones. An API server that goes back forgets the change.
#[derive(Default)]
pub(super) struct Hindered {
    remounted: BTreeSet<String>,
}

impl Hindered {
    /// Notes the changes of PersistentVolumes.
    pub(super) fn note(&mut self, volumes: &[Arc<Value>]) {
        let changed = volumes
            .iter()
            .filter(|volume| annotation(volume, REMOUNTED).is_some());
        let handles = changed.map(|volume| text(volume, "/spec/csi/volumeHandle").to_owned());
        self.remounted.extend(handles);
    }

    /// True if users hinder the calls about a PersistentVolume.
    pub(super) fn has(&self, cluster: &Cluster, volume: &Value) -> bool {
        self.remounted
            .contains(text(volume, "/spec/csi/volumeHandle"))
            || secrets(volume).any(|at| cluster.api.shared_at(&at).is_none())
    }
}

/// The paths of the secrets that a PersistentVolume names.
pub(super) fn secrets(volume: &Value) -> impl Iterator<Item = String> {
    let references = SECRETS
        .into_iter()
        .map(move |field| &volume["spec"]["csi"][field]);
    let references = references.filter(|reference| reference.is_object());
    references.map(|reference| {
        let (space, name) = (text(reference, "/namespace"), text(reference, "/name"));
        path_in(space, "secrets", name)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changed_options_and_secrets_are_known() {
        let volume = |handle: &str, annotations: Value| {
            json!({"metadata": {"annotations": annotations},
                "spec": {"csi": {"volumeHandle": handle,
                    "nodeStageSecretRef": {"name": "c1", "namespace": "u"}}}})
        };
        let (plain, changed) = (
            volume("a", Value::Null),
            volume("b", json!({REMOUNTED: "true"})),
        );
        let named: Vec<String> = secrets(&plain).collect();
        assert_eq!(named, ["/api/v1/namespaces/u/secrets/c1"]);
        let mut hindered = Hindered::default();
        hindered.note(&[Arc::new(plain), Arc::new(changed)]);
        assert_eq!(hindered.remounted, BTreeSet::from(["b".to_owned()]));
    }
}
