//! Lists the kinds that the API server serves. Every account may ask for them.

use std::collections::BTreeSet;

use super::{ApiCall, ApiError, Kube, unless_gone};

impl Kube {
    /// The plurals of the kinds in an API group version, such as `storage.k8s.io/v1`. Empty if the
    /// API server does not serve this version.
    pub async fn served(&self, api: &str) -> Result<BTreeSet<String>, ApiError> {
        let kind = "APIResourceList".to_owned();
        let call = ApiCall {
            verb: "list",
            kind,
            name: api.to_owned(),
        };
        let listed = self
            .timely(call, self.client.list_api_group_resources(api))
            .await;
        let resources = unless_gone(listed)?
            .into_iter()
            .flat_map(|list| list.resources);
        Ok(resources.map(|one| one.name).collect())
    }
}
