//! Requests for objects of any kind, with a deadline, and errors that say which right is missing.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::Client;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions, TypeMeta,
};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::manifests::ObjectKey;

mod error;

pub use error::ApiError;
pub(super) use error::Call;

/// The field manager of what `install` applies.
pub(super) const MANAGER: &str = "kubectl-hostloop";

/// The deadline of a request.
const DEADLINE: Duration = Duration::from_secs(30);

/// The number of objects in one answer to a list.
const PAGE: u32 = 500;

/// A kind as this API server serves it.
#[derive(Clone, Debug)]
struct Served {
    resource: ApiResource,
    is_namespaced: bool,
}

/// The objects of a cluster. It asks for the kinds of a group once.
pub(super) struct Objects {
    client: Client,
    groups: BTreeMap<String, Vec<APIResource>>,
}

impl Objects {
    pub(super) fn new(client: Client) -> Self {
        Objects { client, groups: BTreeMap::new() }
    }

    /// Forgets which kinds are served, because new ones were defined.
    pub(super) fn forget_kinds(&mut self) {
        self.groups.clear();
    }

    /// True if the API server serves the kind in this version.
    pub(super) async fn serves(&mut self, version: &str, kind: &str) -> Result<bool, ApiError> {
        Ok(self.kind(version, kind).await?.is_some())
    }

    /// The object; `None` if it does not exist, or its kind is not served.
    pub(super) async fn get(&mut self, key: &ObjectKey) -> Result<Option<Value>, ApiError> {
        let Some(served) = self.kind(&key.version, &key.kind).await? else {
            return Ok(None);
        };
        let call = served.call("get", &key.namespace, &key.name);
        let api = served.api(&self.client, &key.namespace);
        match timely(call, api.get(&key.name)).await {
            Ok(object) => Ok(serde_json::to_value(object).ok()),
            Err(ApiError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects of a kind with these labels (`key=value`; empty for all), of one namespace or,
    /// if it is empty, of all; none if the kind is not served.
    pub(super) async fn list<K: DeserializeOwned>(
        &mut self,
        (version, kind): (&str, &str),
        namespace: &str,
        labels: &str,
    ) -> Result<Vec<K>, ApiError> {
        self.list_page((version, kind), namespace, labels, None).await
    }

    /// At most `limit` objects of a kind; all if it is `None`.
    pub(super) async fn list_page<K: DeserializeOwned>(
        &mut self,
        (version, kind): (&str, &str),
        namespace: &str,
        labels: &str,
        limit: Option<u32>,
    ) -> Result<Vec<K>, ApiError> {
        let Some(served) = self.kind(version, kind).await? else {
            return Ok(Vec::new());
        };
        let api = served.api(&self.client, namespace);
        let mut params = ListParams::default().limit(limit.unwrap_or(PAGE));
        params.label_selector = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
        let mut objects = Vec::new();
        loop {
            let call = served.call("list", namespace, "");
            let page = timely(call.clone(), api.list(&params)).await?;
            for mut object in page.items {
                // The API server leaves this out of the items of a list.
                object.types.get_or_insert_with(|| served.types());
                let read = serde_json::to_value(object).and_then(serde_json::from_value);
                objects.push(read.map_err(|error| {
                    ApiError::new(call.clone(), kube::Error::SerdeError(error))
                })?);
            }
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() && limit.is_none() => {
                    params.continue_token = Some(token);
                }
                _ => return Ok(objects),
            }
        }
    }

    /// Applies an object server-side, and returns it as stored. `force` takes fields over from
    /// other managers.
    pub(super) async fn apply(&mut self, object: &Value, force: bool) -> Result<Value, ApiError> {
        let key = ObjectKey::of(object);
        let Some(served) = self.kind(&key.version, &key.kind).await? else {
            return Err(ApiError::NotFound { call: key.call("patch") });
        };
        let api = served.api(&self.client, &key.namespace);
        let params = PatchParams { force, ..PatchParams::apply(MANAGER) };
        let call = served.call("patch", &key.namespace, &key.name);
        let stored = timely(call, api.patch(&key.name, &params, &Patch::Apply(object))).await?;
        Ok(serde_json::to_value(stored).unwrap_or_default())
    }

    /// Deletes an object if it is still the one that was read. Deleting a missing object succeeds.
    pub(super) async fn delete(&mut self, object: &Value) -> Result<(), ApiError> {
        let key = ObjectKey::of(object);
        let Some(served) = self.kind(&key.version, &key.kind).await? else {
            return Ok(());
        };
        let uid = object["metadata"]["uid"].as_str().map(str::to_owned);
        let params =
            DeleteParams::background().preconditions(Preconditions { uid, resource_version: None });
        let call = served.call("delete", &key.namespace, &key.name);
        let api = served.api(&self.client, &key.namespace);
        match timely(call, api.delete(&key.name, &params)).await {
            Ok(_) | Err(ApiError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn kind(&mut self, version: &str, kind: &str) -> Result<Option<Served>, ApiError> {
        if !self.groups.contains_key(version) {
            let resource = format!("the kinds of {version}");
            let call = Call { verb: "get", resource, target: String::new() };
            let asked = async {
                match version.contains('/') {
                    true => self.client.list_api_group_resources(version).await,
                    false => self.client.list_core_api_resources(version).await,
                }
            };
            let kinds = match timely(call, asked).await {
                Ok(list) => list.resources,
                Err(ApiError::NotFound { .. }) => Vec::new(),
                Err(error) => return Err(error),
            };
            self.groups.insert(version.to_owned(), kinds);
        }
        let kinds = self.groups.get(version).into_iter().flatten();
        Ok(kinds
            .filter(|resource| resource.kind == kind && !resource.name.contains('/'))
            .map(|found| {
                let (group, plain) = version.split_once('/').unwrap_or(("", version));
                let gvk = GroupVersionKind::gvk(group, plain, kind);
                Served {
                    resource: ApiResource::from_gvk_with_plural(&gvk, &found.name),
                    is_namespaced: found.namespaced,
                }
            })
            .next())
    }
}

impl Served {
    /// The API of the kind in a namespace, or everywhere.
    fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        match self.is_namespaced && !namespace.is_empty() {
            true => Api::namespaced_with(client.clone(), namespace, &self.resource),
            false => Api::all_with(client.clone(), &self.resource),
        }
    }

    fn types(&self) -> TypeMeta {
        let ApiResource { api_version, kind, .. } = self.resource.clone();
        TypeMeta { api_version, kind }
    }

    fn call(&self, verb: &'static str, namespace: &str, name: &str) -> Call {
        Call::new(verb, &self.resource.plural, &self.resource.group, namespace, name)
    }
}

/// Waits for an answer until the deadline.
pub(super) async fn timely<T>(
    call: Call,
    sent: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(DEADLINE, sent).await {
        Ok(answer) => answer.map_err(|error| ApiError::new(call, error)),
        Err(_) => Err(ApiError::Timeout { call }),
    }
}
