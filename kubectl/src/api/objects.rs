//! Objects of any kind, by the API server's own list of kinds.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::Client;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions, TypeMeta,
};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ApiError, Call, PAGE, pages, resource, timely};
use crate::manifests::{MANAGER, ObjectKey};

/// A kind as this API server serves it.
#[derive(Clone, Debug)]
struct ServedKind {
    resource: ApiResource,
    is_namespaced: bool,
}

/// The objects of a cluster. It asks for the kinds of a group once.
pub(crate) struct Objects {
    client: Client,
    groups: BTreeMap<String, Vec<APIResource>>,
    /// True if the API server checks changes, and makes none.
    dry_run: bool,
}

impl Objects {
    pub(crate) fn new(client: Client) -> Self {
        Objects {
            client,
            groups: BTreeMap::new(),
            dry_run: false,
        }
    }

    /// The same objects, which no request changes: the API server checks changes, and makes none.
    pub(crate) fn for_dry_run(client: Client) -> Self {
        Objects {
            dry_run: true,
            ..Objects::new(client)
        }
    }

    /// Forgets which kinds are served, because new ones were defined.
    pub(crate) fn forget_kinds(&mut self) {
        self.groups.clear();
    }

    /// True if the API server serves the kind in this version.
    pub(crate) async fn serves(&mut self, version: &str, kind: &str) -> Result<bool, ApiError> {
        Ok(self.kind(version, kind).await?.is_some())
    }

    /// The object; `None` if it does not exist, or its kind is not served.
    pub(crate) async fn get(&mut self, key: &ObjectKey) -> Result<Option<Value>, ApiError> {
        let Some(served) = self.kind(&key.version, &key.kind).await? else {
            return Ok(None);
        };
        let call = served.call("get", &key.namespace, &key.name);
        let api = served.api(&self.client, &key.namespace);
        let object = timely(call, api.get_opt(&key.name)).await?;
        Ok(object.and_then(|object| serde_json::to_value(object).ok()))
    }

    /// All objects of a kind with these labels (`key=value`; empty for all), of one namespace or,
    /// if it is empty, of all; none if the kind is not served.
    pub(crate) async fn list<K: DeserializeOwned>(
        &mut self,
        (version, kind): (&str, &str),
        namespace: &str,
        labels: &str,
    ) -> Result<Vec<K>, ApiError> {
        let Some(served) = self.kind(version, kind).await? else {
            return Ok(Vec::new());
        };
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
        let call = served.call("list", namespace, "");
        let objects = pages(&served.api(&self.client, namespace), params, &call).await?;
        objects
            .into_iter()
            .map(|object| served.read(object, &call))
            .collect()
    }

    /// Applies an object server-side, and returns it as stored. `force` takes fields over from
    /// other managers.
    pub(crate) async fn apply(&mut self, object: &Value, force: bool) -> Result<Value, ApiError> {
        let key = ObjectKey::of(object);
        let Some(served) = self.kind(&key.version, &key.kind).await? else {
            return Err(ApiError::NotServed(format!("{} {}", key.version, key.kind)));
        };
        let api = served.api(&self.client, &key.namespace);
        let params = PatchParams {
            force,
            dry_run: self.dry_run,
            ..PatchParams::apply(MANAGER)
        };
        let call = served.call("patch", &key.namespace, &key.name);
        let stored = timely(call, api.patch(&key.name, &params, &Patch::Apply(object))).await?;
        Ok(serde_json::to_value(stored).unwrap_or_default())
    }

    /// Deletes an object if it is still the one that was read. Deleting a missing object succeeds.
    pub(crate) async fn delete(&mut self, object: &Value) -> Result<(), ApiError> {
        let key = ObjectKey::of(object);
        let Some(served) = self.kind(&key.version, &key.kind).await? else {
            return Ok(());
        };
        let uid = object["metadata"]["uid"].as_str().map(str::to_owned);
        let mut params = DeleteParams::background().preconditions(Preconditions {
            uid,
            resource_version: None,
        });
        params.dry_run = self.dry_run;
        let call = served.call("delete", &key.namespace, &key.name);
        let api = served.api(&self.client, &key.namespace);
        match timely(call, api.delete(&key.name, &params)).await {
            Ok(_) | Err(ApiError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn kind(&mut self, version: &str, kind: &str) -> Result<Option<ServedKind>, ApiError> {
        if !self.groups.contains_key(version) {
            let call = Call::new("get", &format!("the kinds of {version}"), None, "");
            let asked = async {
                if version.contains('/') {
                    self.client.list_api_group_resources(version).await
                } else {
                    self.client.list_core_api_resources(version).await
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
                ServedKind {
                    resource: ApiResource::from_gvk_with_plural(&gvk, &found.name),
                    is_namespaced: found.namespaced,
                }
            })
            .next())
    }
}

impl ServedKind {
    /// The API of the kind in a namespace, or everywhere.
    fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        if self.is_namespaced && !namespace.is_empty() {
            Api::namespaced_with(client.clone(), namespace, &self.resource)
        } else {
            Api::all_with(client.clone(), &self.resource)
        }
    }

    /// An object of a list as the type that the caller reads.
    fn read<K: DeserializeOwned>(
        &self,
        mut object: DynamicObject,
        call: &Call,
    ) -> Result<K, ApiError> {
        // The API server leaves this out of the items of a list.
        let ApiResource {
            api_version, kind, ..
        } = self.resource.clone();
        object.types.get_or_insert(TypeMeta { api_version, kind });
        let read = serde_json::to_value(object).and_then(serde_json::from_value);
        read.map_err(|error| ApiError::new(call.clone(), kube::Error::SerdeError(error)))
    }

    fn call(&self, verb: &str, namespace: &str, name: &str) -> Call {
        let resource = resource(&self.resource.plural, &self.resource.group);
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        Call::new(verb, &resource, namespace, name)
    }
}
