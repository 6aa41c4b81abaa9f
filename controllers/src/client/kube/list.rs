//! Lists objects from the API server, for cases where a watch selects too little.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PartialObjectMeta, Request};
use kube::core::ObjectList;

use super::{ApiCall, ApiError, KeptFields, Kube, Resource, known};

/// Objects in one page.
const PAGE: u32 = 500;
/// Objects in one page of those that users write, which may all be large: 3 MiB of pods.
const SMALL_PAGE: u32 = 50;

impl Kube {
    /// Passes every object of a kind to `take`. Fails if one of them is too large to be known.
    pub async fn each<K: Resource>(&self, take: impl FnMut(K)) -> Result<(), ApiError> {
        self.pages(
            ListParams::default(),
            usize::MAX,
            async |api: &Api<K>, params: &ListParams| all_known(api.list(params).await?),
            take,
        )
        .await?;
        Ok(())
    }

    /// Like [`Kube::each`], with other fields than those that are usually kept. Only objects with
    /// these labels count, unless the selector is empty.
    pub(crate) async fn each_fields<K: Resource>(
        &self,
        labels: &str,
        fields: &'static KeptFields,
        mut take: impl FnMut(K),
    ) -> Result<(), ApiError> {
        let api = K::everywhere(self.client.clone());
        let mut params = ListParams::default().limit(PAGE);
        if !labels.is_empty() {
            params = params.labels(labels);
        }
        loop {
            let sent = async {
                let request = Request::new(api.resource_url()).list(&params);
                all_known::<K>(self.send_trimmed(request, fields).await?)
            };
            let page = self
                .timely(ApiCall::new::<K>("list", "", labels), sent)
                .await?;
            page.items.into_iter().for_each(&mut take);
            match next_page(page.metadata) {
                None => return Ok(()),
                Some(token) => params.continue_token = Some(token),
            }
        }
    }

    /// Like [`Kube::each`], but reads only the metadata.
    pub async fn each_metadata<K: Resource>(
        &self,
        take: impl FnMut(PartialObjectMeta<K>),
    ) -> Result<(), ApiError> {
        self.pages(
            ListParams::default(),
            usize::MAX,
            async |api: &Api<K>, params: &ListParams| api.list_metadata(params).await,
            take,
        )
        .await?;
        Ok(())
    }

    /// Gives the objects with these labels to `take`, of all namespaces and of at most this many
    /// pages. Of an object that is too large, only the name is known. False if there are more.
    pub async fn list<K: Resource>(
        &self,
        labels: &str,
        pages: usize,
        mut take: impl FnMut(K),
    ) -> Result<bool, ApiError> {
        self.pages(
            ListParams::default().labels(labels),
            pages,
            async |api: &Api<K>, params: &ListParams| api.list(params).await,
            |mut object: K| {
                object.managed_fields_mut().clear();
                take(object);
            },
        )
        .await
    }

    /// Gives the objects with this value of a field (`name=value`) to `take`, of all namespaces. Of
    /// an object that is too large, only the name is known.
    pub async fn list_by_field<K: Resource>(
        &self,
        field: &str,
        take: impl FnMut(K),
    ) -> Result<(), ApiError> {
        self.pages(
            ListParams::default().fields(field).limit(SMALL_PAGE),
            usize::MAX,
            async |api: &Api<K>, params: &ListParams| api.list(params).await,
            take,
        )
        .await?;
        Ok(())
    }

    /// Like [`Kube::list_by_field`], in one namespace, and until `take` returns false.
    pub async fn list_in_by_field<K: Resource>(
        &self,
        namespace: &str,
        field: &str,
        mut take: impl FnMut(K) -> bool,
    ) -> Result<(), ApiError> {
        let api = K::api(self.client.clone(), namespace);
        let mut params = ListParams::default().fields(field).limit(SMALL_PAGE);
        loop {
            let call = ApiCall::new::<K>("list", namespace, field);
            let page = self.timely(call, api.list(&params)).await?;
            let is_done = !page.items.into_iter().all(&mut take);
            match next_page(page.metadata).filter(|_| !is_done) {
                None => return Ok(()),
                Some(token) => params.continue_token = Some(token),
            }
        }
    }

    /// Like [`Kube::list`], but reads only the metadata.
    pub async fn list_metadata<K: Resource>(
        &self,
        labels: &str,
        pages: usize,
        take: impl FnMut(PartialObjectMeta<K>),
    ) -> Result<bool, ApiError> {
        self.pages(
            ListParams::default().labels(labels),
            pages,
            async |api: &Api<K>, params: &ListParams| api.list_metadata(params).await,
            take,
        )
        .await
    }

    async fn pages<K: Resource, O: Clone>(
        &self,
        mut params: ListParams,
        pages: usize,
        page: impl AsyncFn(&Api<K>, &ListParams) -> kube::Result<ObjectList<O>>,
        mut take: impl FnMut(O),
    ) -> Result<bool, ApiError> {
        let api = K::everywhere(self.client.clone());
        params.limit.get_or_insert(PAGE);
        let selector = [&params.label_selector, &params.field_selector];
        let selector = selector
            .into_iter()
            .flatten()
            .next()
            .cloned()
            .unwrap_or_default();
        for _ in 0..pages {
            let call = ApiCall::new::<K>("list", "", &selector);
            let page = self.timely(call, page(&api, &params)).await?;
            page.items.into_iter().for_each(&mut take);
            match next_page(page.metadata) {
                None => return Ok(true),
                Some(token) => params.continue_token = Some(token),
            }
        }
        Ok(false)
    }
}

/// Fails if an object of a page is too large to be known.
fn all_known<K: Resource>(page: ObjectList<K>) -> kube::Result<ObjectList<K>> {
    let items = page
        .items
        .into_iter()
        .map(known)
        .collect::<kube::Result<_>>()?;
    Ok(ObjectList { items, ..page })
}

/// The token of the next page, if there is one.
fn next_page(metadata: ListMeta) -> Option<String> {
    metadata.continue_.filter(|token| !token.is_empty())
}
