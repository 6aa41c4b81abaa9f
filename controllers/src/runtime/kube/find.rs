//! Objects that a watch does not show.

use std::sync::Arc;

use kube::ResourceExt;
use kube::api::{Api, ListParams};

use super::{ApiError, Call, Kube, Resource};
use crate::runtime::Watch;

/// Objects in a page of a list.
const PAGE: u32 = 500;

impl Kube {
    /// An object by what was seen of its kind; if only a part of the kind is watched and it is not
    /// in there, as the server has it.
    pub async fn find<K: Resource>(
        &self,
        watch: &Watch<K>,
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

    /// The objects of all namespaces that have these labels, page by page: at most so many pages.
    /// `take` is told of each object. Whether that were all.
    pub async fn list<K: Resource>(
        &self,
        labels: &str,
        pages: usize,
        mut take: impl FnMut(K),
    ) -> Result<bool, ApiError> {
        let api: Api<K> = K::everywhere(self.client.clone());
        let mut params = ListParams::default().labels(labels).limit(PAGE);
        for _ in 0..pages {
            let call = Call::new::<K>("list", "", labels);
            let page = self.timely(call, api.list(&params)).await?;
            let next = page.metadata.continue_.clone();
            for mut object in page.items {
                object.managed_fields_mut().clear();
                take(object);
            }
            match next.filter(|next| !next.is_empty()) {
                None => return Ok(true),
                Some(next) => params = params.continue_token(&next),
            }
        }
        Ok(false)
    }
}
