//! The users' namespace, which goes and comes back.

use kube::Client;
use serde_json::json;

use crate::cluster::NAMESPACE;
use crate::model::view::collection;
use crate::users::{self, Refused, post};

/// Creates the namespace again.
pub(super) async fn create(client: &Client) -> Result<(), Refused> {
    let object = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": NAMESPACE}});
    post(client, &collection("namespaces", ""), &object).await
}

/// Deletes the namespace, with all that is in it.
pub(super) async fn delete(client: &Client) -> Result<(), Refused> {
    let at = format!("{}/{NAMESPACE}", collection("namespaces", ""));
    users::delete(client, &at).await
}
