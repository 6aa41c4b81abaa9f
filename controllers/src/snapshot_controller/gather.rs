//! Gathers the facts of decisions from the caches.

use std::sync::Arc;

use super::kind::{Facts, SnapshotKind};
use super::watches::Watches;
use crate::cache::Store;
use crate::client::{ApiError, Kube, Resource};

impl Watches {
    /// Gathers all inputs of the decision about a snapshot.
    pub(super) async fn gather<K: SnapshotKind>(
        &self,
        kube: &Kube,
        snapshot: Arc<K::Snapshot>,
    ) -> Result<Facts<K>, ApiError> {
        let (_, contents, classes) = K::watches(self);
        let must = K::view(&snapshot).bound.is_some() || snapshot.is_deleting();
        let content = find(contents, kube, K::expected_content(&snapshot), must).await?;
        Ok(Facts {
            classes: classes.all(),
            nodes: self.nodes.as_ref().map(Store::all),
            own: K::own_facts(self, kube, &snapshot, content.as_deref()).await?,
            content,
            snapshot,
        })
    }
}

/// Finds a cluster-scoped object. If it must exist but is not in the cache, the API server is
/// asked, since one watch may be ahead of another.
async fn find<K: Resource>(
    watch: &Store<K>,
    kube: &Kube,
    name: Option<String>,
    must: bool,
) -> Result<Option<Arc<K>>, ApiError> {
    match name.filter(|name| !name.is_empty()) {
        None => Ok(None),
        Some(name) if must => kube.find_live(watch, "", &name).await,
        Some(name) => Ok(watch.get(&name)),
    }
}
