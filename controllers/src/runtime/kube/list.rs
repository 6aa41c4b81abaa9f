//! Lists: what there is for certain, where what a watch has told of is not enough.

use kube::api::{ListParams, PartialObjectMeta};
use kube::core::ObjectList;

use super::{ApiError, Call, Kube, Resource};

/// Objects in one answer.
const PAGE: u32 = 500;

impl Kube {
    /// All objects of a kind as the server has them now, one after the other.
    pub async fn each<K: Resource>(&self, mut take: impl FnMut(K)) -> Result<(), ApiError> {
        let api = K::everywhere(self.client.clone());
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let call = Call::new::<K>("list", "", "");
            let page = self.timely(call, api.list(&params)).await?;
            match taken(page, &mut take) {
                None => return Ok(()),
                Some(next) => params.continue_token = Some(next),
            }
        }
    }

    /// The same, of their metadata alone.
    pub async fn each_metadata<K: Resource>(
        &self,
        mut take: impl FnMut(PartialObjectMeta<K>),
    ) -> Result<(), ApiError> {
        let api = K::everywhere(self.client.clone());
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let call = Call::new::<K>("list", "", "");
            let page = self.timely(call, api.list_metadata(&params)).await?;
            match taken(page, &mut take) {
                None => return Ok(()),
                Some(next) => params.continue_token = Some(next),
            }
        }
    }
}

/// Gives out a page, and says how to have the next.
fn taken<K: Clone>(page: ObjectList<K>, take: &mut impl FnMut(K)) -> Option<String> {
    page.items.into_iter().for_each(take);
    page.metadata.continue_.filter(|token| !token.is_empty())
}
