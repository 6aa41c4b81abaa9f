//! Objects that a watch does not show.

use std::sync::Arc;

use super::{ApiError, Kube, Resource};
use crate::runtime::Store;

impl Kube {
    /// An object by what was seen of its kind; if only a part of the kind is watched and it is not
    /// in there, as the server has it.
    pub async fn find<K: Resource>(
        &self,
        watch: &Store<K>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<K>>, ApiError> {
        match watch.get_in(namespace, name) {
            None if !watch.is_whole() => {
                let found = self.get::<K>(namespace, name).await?;
                Ok(found.map(Arc::new))
            }
            known => Ok(known),
        }
    }
}
