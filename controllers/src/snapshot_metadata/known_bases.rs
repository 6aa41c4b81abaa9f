//! Keeps [`BaseHistory`] in its ConfigMap, and answers who may compare with a base.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;

use super::base::{handle_of, namespace_of};
use super::base_history::{BaseHistory, MOST, key};
use super::upkeep::now;
use crate::cache::{Change, Store};
use crate::client::{ApiError, Kube};
use crate::pauses::Pauses;
use crate::snapshots::VolumeSnapshotContent;

/// The ConfigMap with the history. The component brings it, empty.
pub(super) const CONFIG_MAP: &str = "hostloop-snapshot-bases";
/// The time between two writes, in which further contents come. Each writes the whole ConfigMap, so
/// a user who makes snapshots all the time would fill the disk of the API server with its versions. A
/// new leader lacks only what came and went since the last write.
const PAUSES: Pauses = Pauses {
    pace: Duration::from_secs(20),
    after_failure: Duration::from_secs(10),
    failed: "cannot keep which snapshots were in which namespaces",
};

#[derive(Debug, thiserror::Error)]
enum HistoryError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(
        "ConfigMap {0}/{name} does not exist: apply the component snapshot-metadata",
        name = CONFIG_MAP
    )]
    Missing(String),
}

/// The snapshots that are or were in a namespace.
pub(super) struct KnownBases {
    kube: Kube,
    namespace: String,
    driver: String,
    contents: Store<VolumeSnapshotContent>,
    /// `None` until it is read.
    history: Mutex<Option<BaseHistory>>,
    /// Keys of contents that were seen and are not written yet, also of those that are gone again.
    seen: Arc<Mutex<BTreeSet<String>>>,
}

impl KnownBases {
    /// Follows the contents of this driver.
    pub(super) fn new(
        kube: Kube,
        namespace: String,
        driver: String,
        contents: Store<VolumeSnapshotContent>,
    ) -> Self {
        let seen: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (noted, of_driver) = (seen.clone(), driver.clone());
        contents.on_change(move |change: &Change<VolumeSnapshotContent>| {
            let key = key_of(change.object(), &of_driver);
            let mut noted = noted.lock();
            // Without the ConfigMap, there is no write for as long as that lasts.
            let has_room = noted.len() < MOST;
            noted.extend(key.filter(|_| has_room));
        });
        KnownBases {
            kube,
            namespace,
            driver,
            contents,
            history: Mutex::default(),
            seen,
        }
    }

    /// True if a snapshot with this handle was in the namespace; `None` if that is not known yet.
    pub(super) fn has(&self, handle: &str, namespace: &str) -> Option<bool> {
        let key = key(handle, namespace);
        let history = self.history.lock();
        let history = history.as_ref()?;
        Some(self.seen.lock().contains(&key) || history.has(handle, namespace))
    }

    /// Keeps the history until the future is dropped.
    pub(super) async fn keep(&self) {
        self.contents.synced().await;
        loop {
            PAUSES.rest(self.write().await).await;
        }
    }

    /// Writes what was seen since the last time. After a failure, the ConfigMap is read again: the
    /// write may have arrived.
    async fn write(&self) -> Result<(), HistoryError> {
        let is_read = self.history.lock().is_some();
        if is_read && self.seen.lock().is_empty() {
            return Ok(());
        }
        let map: Option<ConfigMap> = self.kube.get(&self.namespace, CONFIG_MAP).await?;
        let map = map.ok_or_else(|| HistoryError::Missing(self.namespace.clone()))?;
        let mut history = BaseHistory::read(&map.data.clone().unwrap_or_default());
        let seen = self.seen.lock().clone();
        let mut present: BTreeSet<String> = seen.clone();
        present.extend(
            self.contents
                .each()
                .filter_map(|content| key_of(&content, &self.driver)),
        );
        let patch = history.update(&present, now(), MOST);
        if !patch.is_empty() {
            let patch = serde_json::json!({"data": patch});
            self.kube.merge(&map, patch).await?;
        }
        *self.history.lock() = Some(history);
        self.seen.lock().retain(|key| !seen.contains(key));
        Ok(())
    }
}

/// The key of a content of this driver that has a handle and a namespace.
fn key_of(content: &VolumeSnapshotContent, driver: &str) -> Option<String> {
    if content.spec.driver != driver {
        return None;
    }
    Some(key(handle_of(content)?, namespace_of(content)?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{DRIVER, World};

    fn content(driver: &str, namespace: &str, handle: &str) -> Value {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": format!("c-{namespace}-{handle}")},
            "spec": {
                "driver": driver, "deletionPolicy": "Delete", "source": {"volumeHandle": "v"},
                "volumeSnapshotRef": {"namespace": namespace, "name": "s"},
            },
            "status": {"snapshotHandle": handle},
        })
    }

    #[tokio::test]
    async fn a_new_leader_knows_what_was_deleted() {
        let world = World::new(&[]);
        let leader = |contents: Store<VolumeSnapshotContent>| {
            let kube = world.context.kube.clone();
            KnownBases::new(kube, "hostloop".to_owned(), DRIVER.to_owned(), contents)
        };
        let contents = Store::new();
        let first = leader(contents.clone());
        assert_eq!(first.has("h", "ns"), None, "nothing is read");
        assert!(first.write().await.is_err(), "there is no ConfigMap");
        world.api.put(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "hostloop", "name": CONFIG_MAP},
        }));
        world.add(&contents, content(DRIVER, "ns", "h"));
        world.add(&contents, content("csi.other", "ns", "i"));
        first.write().await.unwrap();
        let second = leader(Store::new());
        second.write().await.unwrap();
        for leader in [first, second] {
            for (handle, namespace, known) in [
                ("h", "ns", true),
                ("h", "other", false),
                ("i", "ns", false),
                ("j", "ns", false),
            ] {
                assert_eq!(leader.has(handle, namespace), Some(known), "{handle}");
            }
        }
    }
}
