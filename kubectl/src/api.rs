//! Requests to the API server with the person's rights. Each has a deadline, and the error of a
//! refused request names the missing right.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{
    DeleteParams, GetParams, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions,
    PropagationPolicy, Request,
};
use kube::{Api, Resource};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::time::timeout;

mod error;
mod objects;
mod readable;

pub use error::ApiError;
pub(super) use error::{Call, resource};
pub(super) use objects::Objects;
pub(super) use readable::Readable;

use super::manifests::MANAGER;

/// The deadline of a request.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// The number of requests at the same time.
pub(super) const AT_ONCE: usize = 8;
/// The number of objects in one page of a list.
const PAGE: u32 = 500;

/// A kind of objects that can be read.
pub(super) trait Kind:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug
{
}

impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug> Kind for K {}

/// A kind of objects in namespaces.
pub(super) trait Namespaced: Kind + Resource<Scope = NamespaceResourceScope> {}

impl<K: Kind + Resource<Scope = NamespaceResourceScope>> Namespaced for K {}

/// Lists the objects of a kind that match, in pages.
pub(super) async fn list<K: Kind>(api: &Api<K>, params: ListParams) -> Result<Vec<K>, ApiError> {
    pages(api, params.limit(PAGE), &Call::of("list", api, "")).await
}

/// Lists all objects of a kind.
pub(super) async fn list_all<K: Kind>(api: &Api<K>) -> Result<Vec<K>, ApiError> {
    list(api, ListParams::default()).await
}

/// What was found; nothing of a kind that the API server does not serve.
pub(super) fn served<T: Default>(found: Result<T, ApiError>) -> Result<T, ApiError> {
    match found {
        Err(ApiError::NotServed(_)) => Ok(T::default()),
        found => found,
    }
}

/// True for a text that can't be a name, and would lead to the path of another object. Users write any
/// text where the name of an object is expected.
fn leads_elsewhere(name: &str) -> bool {
    matches!(name, "." | "..") || name.contains(['/', '%', '?', '#'])
}

/// The text at a path of an object or event; empty if there is none.
pub(super) fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    let text = value.pointer(path).and_then(Value::as_str);
    text.unwrap_or_default()
}

/// Reads an object; `None` if it does not exist.
pub(super) async fn get<K: Kind>(api: &Api<K>, name: &str) -> Result<Option<K>, ApiError> {
    if leads_elsewhere(name) {
        return Ok(None);
    }
    let sent = async {
        let request = Request::new(api.resource_url()).get(name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        match api.clone().into_client().request(request).await {
            Ok(Readable(object)) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    };
    timely(Call::of("get", api, name), sent).await
}

/// Creates an object, which has a name. In a dry run, the API server checks it, and creates none.
pub(super) async fn create<K: Kind>(
    api: &Api<K>,
    object: &Value,
    dry_run: bool,
) -> Result<(), ApiError> {
    let params = PostParams {
        dry_run,
        field_manager: Some(MANAGER.to_owned()),
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let sent = async {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let request = Request::new(api.resource_url()).create(&params, body);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let client = api.clone().into_client();
        client.request::<IgnoredAny>(request).await
    };
    timely(Call::of("create", api, name), sent).await?;
    Ok(())
}

/// Changes an object by a merge patch. In a dry run, the API server checks the change, and makes
/// none.
pub(super) async fn merge<K: Kind>(
    api: &Api<K>,
    name: &str,
    patch: &Value,
    dry_run: bool,
) -> Result<(), ApiError> {
    let params = PatchParams {
        dry_run,
        ..PatchParams::apply(MANAGER)
    };
    let sent = async {
        let patch = Patch::Merge(patch);
        let request = Request::new(api.resource_url()).patch(name, &params, &patch);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let client = api.clone().into_client();
        client.request::<IgnoredAny>(request).await
    };
    timely(Call::of("patch", api, name), sent).await?;
    Ok(())
}

/// Deletes an object if it still has this UID, with this grace period in seconds instead of its own.
/// What it owns is deleted after it. Deleting a missing object succeeds.
pub(super) async fn delete<K: Kind>(
    api: &Api<K>,
    name: &str,
    uid: Option<String>,
    grace: Option<u32>,
    dry_run: bool,
) -> Result<(), ApiError> {
    let params = DeleteParams {
        dry_run,
        grace_period_seconds: grace,
        // The pods of a Job would stay otherwise.
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions {
            uid,
            resource_version: None,
        }),
    };
    let sent = async {
        let request = Request::new(api.resource_url()).delete(name, &params);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let client = api.clone().into_client();
        client.request::<IgnoredAny>(request).await
    };
    match timely(Call::of("delete", api, name), sent).await {
        // Another object has the name since.
        Ok(_) | Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Lists objects to the last page. The parameters have the size of a page.
async fn pages<K>(api: &Api<K>, mut params: ListParams, call: &Call) -> Result<Vec<K>, ApiError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut found = Vec::new();
    loop {
        let sent = async {
            let request = Request::new(api.resource_url()).list(&params);
            let request = request.map_err(kube::Error::BuildRequest)?;
            api.clone()
                .into_client()
                .request::<ObjectList<Readable<K>>>(request)
                .await
        };
        let page = match timely(call.clone(), sent).await {
            // A list of no objects is a list.
            Err(ApiError::NotFound { .. }) => return Err(call.not_served()),
            page => page?,
        };
        found.extend(page.items.into_iter().map(|Readable(object)| object));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// Waits for the answer to a request until the deadline.
pub(super) async fn timely<T>(
    call: Call,
    sent: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiError> {
    match timeout(DEADLINE, sent).await {
        Ok(answer) => answer.map_err(|error| ApiError::new(call, error)),
        Err(_) => Err(ApiError::Timeout { call }),
    }
}

#[cfg(test)]
mod tests;
