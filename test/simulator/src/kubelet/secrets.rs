//! The secrets that calls to a driver carry.

use std::collections::BTreeMap;

use http::Method;
use serde_json::Value;
use tonic::Status;

use super::Kubelet;
use crate::model::view::{name, text};
use crate::secret;
use crate::users::{path_in, send};

/// The secrets that a volume names for calls to its node.
#[derive(Clone, Debug, Default)]
pub(super) struct Secrets {
    pub(super) stage: Option<SecretRef>,
    pub(super) publish: Option<SecretRef>,
    pub(super) expand: Option<SecretRef>,
}

/// The namespace and the name of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretRef {
    namespace: String,
    name: String,
}

impl Secrets {
    /// Those of a PersistentVolume.
    pub(super) fn of(volume: &Value) -> Secrets {
        let source = &volume["spec"]["csi"];
        Secrets {
            stage: SecretRef::of(&source["nodeStageSecretRef"]),
            publish: SecretRef::of(&source["nodePublishSecretRef"]),
            expand: SecretRef::of(&source["nodeExpandSecretRef"]),
        }
    }
}

impl SecretRef {
    fn of(reference: &Value) -> Option<SecretRef> {
        reference.is_object().then(|| SecretRef {
            namespace: text(reference, "/namespace").to_owned(),
            name: text(reference, "/name").to_owned(),
        })
    }
}

impl Kubelet {
    /// The content of the secret for a call. Without it, the call is not made.
    pub(super) async fn content(
        &self,
        secret: Option<&SecretRef>,
    ) -> Result<BTreeMap<String, String>, Status> {
        let Some(SecretRef { namespace, name }) = secret else {
            return Ok(BTreeMap::new());
        };
        let at = path_in(namespace, "secrets", name);
        match send(&self.client, Method::GET, &at, &Value::Null).await {
            Ok(found) => Ok(content_of(&found)),
            Err(refused) => Err(Status::internal(format!(
                "failed to find the secret {name} in the namespace {namespace} with error: {}",
                refused.message
            ))),
        }
    }
}

/// The content of a secret of users, which follows from its name.
fn content_of(found: &Value) -> BTreeMap<String, String> {
    let keys = found["data"].as_object().into_iter().flatten();
    keys.map(|(key, _)| (key.clone(), secret::content(name(found))))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_names_a_secret_for_each_call() {
        let reference = |name: &str| json!({"name": name, "namespace": "u"});
        let volume = json!({"spec": {"csi": {"nodeStageSecretRef": reference("a"),
            "nodeExpandSecretRef": reference("b")}}});
        let secrets = Secrets::of(&volume);
        let names = [&secrets.stage, &secrets.publish, &secrets.expand]
            .map(|one| one.as_ref().map(|one| one.name.as_str()));
        assert_eq!(names, [Some("a"), None, Some("b")]);
        let content = content_of(&secret::object("a"));
        assert_eq!(content.get(secret::KEY), Some(&secret::content("a")));
    }
}
