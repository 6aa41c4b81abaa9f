//! Requests to the API server with the person's rights. The error of a refused request names the
//! missing right.

use std::fmt;
use std::fmt::Debug;
use std::time::Duration;

use kube::api::ListParams;
use kube::core::Status;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(20);
/// The number of objects in one page of a list.
const PAGE: u32 = 500;

/// A right to do something in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Right {
    /// `list`, `get`, `create`, …
    pub verb: String,
    /// The resource and its group, as `kubectl auth can-i` takes it.
    pub resource: String,
    /// The namespace; `None` for the whole cluster.
    pub namespace: Option<String>,
}

impl Right {
    /// A right on a resource of the core group, or on a subresource.
    pub(super) fn new(verb: &str, resource: &str, namespace: Option<&str>) -> Right {
        let namespace = namespace.map(str::to_owned);
        Right { verb: verb.to_owned(), resource: resource.to_owned(), namespace }
    }

    /// A right on a kind, in the namespace of `api`.
    fn of<K: Resource<DynamicType = ()>>(verb: &str, api: &Api<K>) -> Right {
        Right::new(verb, &resource::<K>(), api.namespace())
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in the whole cluster"),
        }
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The person may not do this.
    #[error("you may not {0}; ask for this right")]
    Forbidden(Right),
    /// The API server does not serve the kind.
    #[error("the API server does not serve {0}")]
    NotServed(String),
    /// The API server did not answer in time.
    #[error("{0}: no answer within {seconds} s", seconds = DEADLINE.as_secs())]
    Late(Right),
    /// Another failure.
    #[error("{0}: {1}")]
    Failed(Right, String),
}

impl AccessError {
    /// The error of a request that needs `right`.
    pub(super) fn of(error: kube::Error, right: Right) -> AccessError {
        match error {
            kube::Error::Api(status) if status.code == 403 => {
                let verb = forbidden_verb(&status).unwrap_or(&right.verb).to_owned();
                AccessError::Forbidden(Right { verb, ..right })
            }
            kube::Error::Api(status) => AccessError::Failed(right, status.message),
            error => AccessError::Failed(right, error_chain(&error)),
        }
    }

    /// True if other requests may succeed.
    pub(super) fn is_about_one_kind(&self) -> bool {
        matches!(self, AccessError::Forbidden(_) | AccessError::NotServed(_))
    }
}

/// An error with its causes, each once.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

/// The verb that the API server refused, from its message: `… cannot get resource "pods/exec" …`.
/// For some requests it checks another verb than their method suggests, depending on its version.
fn forbidden_verb(status: &Status) -> Option<&str> {
    let (_, rest) = status.message.split_once(" cannot ")?;
    let (verb, rest) = rest.split_once(' ')?;
    rest.starts_with("resource ").then_some(verb)
}

/// The name of a kind's resource with its group, as `volumesnapshots.snapshot.storage.k8s.io`.
pub(super) fn resource<K: Resource<DynamicType = ()>>() -> String {
    let (plural, group) = (K::plural(&()), K::group(&()));
    match &*group {
        "" => plural.into_owned(),
        group => format!("{plural}.{group}"),
    }
}

/// Lists all objects of a kind that match, in pages.
pub(super) async fn list<K>(api: &Api<K>, params: &ListParams) -> Result<Vec<K>, AccessError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let right = || Right::of("list", api);
    let mut found = Vec::new();
    let mut params = params.clone().limit(PAGE);
    loop {
        let page = match timeout(DEADLINE, api.list(&params)).await {
            Err(_) => return Err(AccessError::Late(right())),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                return Err(AccessError::NotServed(resource::<K>()));
            }
            Ok(Err(error)) => return Err(AccessError::of(error, right())),
            Ok(Ok(page)) => page,
        };
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// The answer to a request that needs `right`, if it comes in time.
pub(super) async fn in_time<T>(
    right: &Right,
    sent: impl Future<Output = kube::Result<T>>,
) -> Result<kube::Result<T>, AccessError> {
    timeout(DEADLINE, sent).await.map_err(|_| AccessError::Late(right.clone()))
}

/// Reads an object; `None` if it does not exist.
pub(super) async fn get<K>(api: &Api<K>, name: &str) -> Result<Option<K>, AccessError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let right = || Right::of("get", api);
    match timeout(DEADLINE, api.get_opt(name)).await {
        Err(_) => Err(AccessError::Late(right())),
        Ok(Err(error)) => Err(AccessError::of(error, right())),
        Ok(Ok(object)) => Ok(object),
    }
}

#[cfg(test)]
mod tests;
