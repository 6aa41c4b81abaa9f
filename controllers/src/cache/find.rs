//! Reads objects that a watch does not select.

use std::sync::Arc;

use crate::cache::Store;
use crate::client::{ApiError, Kube, Resource};

impl Kube {
    /// Returns an object from the store. If the store has only a part of the kind and lacks the
    /// object, reads it from the API server.
    pub async fn find<K: Resource>(
        &self,
        watch: &Store<K>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<K>>, ApiError> {
        match watch.get_in(namespace, name) {
            None if !watch.is_whole() => self.find_live(watch, namespace, name).await,
            known => Ok(known),
        }
    }

    /// Returns an object from the store, or else from the API server. Unlike [`Kube::find`], it
    /// does not trust a whole store: the watch may lag behind.
    pub async fn find_live<K: Resource>(
        &self,
        watch: &Store<K>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<K>>, ApiError> {
        match watch.get_in(namespace, name) {
            None => Ok(self.get::<K>(namespace, name).await?.map(Arc::new)),
            known => Ok(known),
        }
    }
}
