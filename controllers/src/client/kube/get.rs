//! Reads single objects from the API server.

use kube::ResourceExt;
use kube::api::{GetParams, PartialObjectMeta, Request};

use super::{ApiCall, ApiError, KeptFields, Kube, Resource, known, unless_gone};
use crate::api::constants::is_name;

/// True if an object can have this name, in this namespace if it has one. Many names are texts of
/// users. In a path, `?` would lead to a list of all objects, and `?watch=true` to one without end.
fn can_exist(namespace: &str, name: &str) -> bool {
    is_name(name) && (namespace.is_empty() || is_name(namespace))
}

impl Kube {
    /// Reads an object from the API server; `None` if it does not exist.
    pub async fn get<K: Resource>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<K>, ApiError> {
        if !can_exist(namespace, name) {
            return Ok(None);
        }
        let api = K::api(self.client.clone(), namespace);
        let call = ApiCall::new::<K>("get", namespace, name);
        unless_gone(
            self.timely(call, async { known(api.get(name).await?) })
                .await,
        )
    }

    /// Reads the same object again; `None` if it is gone or another object has its name.
    pub async fn again<K: Resource>(&self, object: &K) -> Result<Option<K>, ApiError> {
        let namespace = object.namespace().unwrap_or_default();
        let now = self.get::<K>(&namespace, &object.name_any()).await?;
        Ok(now.filter(|now| now.uid() == object.uid()))
    }

    /// Reads other fields of an object than those that are usually kept.
    pub(crate) async fn get_fields<K: Resource>(
        &self,
        namespace: &str,
        name: &str,
        fields: &'static KeptFields,
    ) -> Result<Option<K>, ApiError> {
        if !can_exist(namespace, name) {
            return Ok(None);
        }
        let api = K::api(self.client.clone(), namespace);
        let call = ApiCall::new::<K>("get", namespace, name);
        let sent = async {
            let request = Request::new(api.resource_url()).get(name, &GetParams::default());
            known(self.send_trimmed::<K>(request, fields).await?)
        };
        unless_gone(self.timely(call, sent).await)
    }

    /// Reads only the metadata of an object, which may be too large to be read as a whole.
    pub(crate) async fn get_metadata<K: Resource>(
        &self,
        namespace: &str,
        name: &str,
        fields: &'static KeptFields,
    ) -> Result<Option<PartialObjectMeta<K>>, ApiError> {
        if !can_exist(namespace, name) {
            return Ok(None);
        }
        let call = ApiCall::new::<K>("get", namespace, name);
        let request = Request::new(K::api(self.client.clone(), namespace).resource_url());
        let request = request.get(name, &GetParams::default());
        unless_gone(self.timely(call, self.send_trimmed(request, fields)).await)
    }
}
