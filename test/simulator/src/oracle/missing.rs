//! What users make again in the end, whatever events say: classes and secrets that are missing.
//! Whether an event asks for it is not checked.

use std::collections::BTreeSet;

use http::Method;
use serde_json::Value;

use crate::cluster::{Cluster, NAMESPACE, classes};
use crate::model::view::{name, namespace, text};
use crate::oracle::advice::AdvisedRequest;
use crate::oracle::{asked_secrets, hindered};
use crate::secret;
use crate::users::{class_path, path};

/// Creates the classes that administrators made first, and the secrets of users, where they are
/// missing.
pub(super) fn advice(cluster: &Cluster, claims: &[Value]) -> Vec<AdvisedRequest> {
    let made = classes().filter_map(|class| {
        let path = class_path(text(&class, "/kind"));
        let is_there = cluster.api.shared_at(&format!("{path}/{}", name(&class)));
        is_there.is_none().then(|| post(path, class))
    });
    let mut all: Vec<AdvisedRequest> = made.collect();
    let volumes = cluster.api.all("persistentvolumes");
    let wanted = volumes.iter().flat_map(hindered::secrets);
    let wanted = wanted.chain(volumes.iter().filter_map(asked_secrets::to_modify));
    let wanted: BTreeSet<String> = wanted.chain(claims.iter().filter_map(of_claim)).collect();
    for at in wanted {
        let name = at.strip_prefix(&format!("{}/", path("secrets", "")));
        if let Some(name) = name.filter(|_| cluster.api.shared_at(&at).is_none()) {
            all.push(post(path("secrets", ""), secret::object(name)));
        }
    }
    all
}

/// The path of the secret that a claim without a volume needs.
fn of_claim(claim: &Value) -> Option<String> {
    let class = text(claim, "/spec/storageClassName");
    let needs_one = class.starts_with("secret") && namespace(claim) == NAMESPACE;
    needs_one.then(|| path("secrets", name(claim)))
}

fn post(path: String, body: Value) -> AdvisedRequest {
    AdvisedRequest {
        method: Method::POST,
        path,
        body,
    }
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_of_a_class_with_secrets_needs_its_own() {
        let claim = |class: &str, space: &str| {
            json!({"metadata": {"name": "c1", "namespace": space},
                "spec": {"storageClassName": class}})
        };
        for (claim, expected) in [
            (claim("secret-now", NAMESPACE), Some(path("secrets", "c1"))),
            (claim("ext4", NAMESPACE), None),
            (claim("secret-now", "other"), None),
        ] {
            assert_eq!(of_claim(&claim), expected, "{claim}");
        }
    }

    #[test]
    fn the_server_has_a_place_for_what_is_made() {
        let api = FakeApi::cluster();
        for class in classes() {
            let path = class_path(text(&class, "/kind"));
            let at = format!("{path}/{}", name(&class));
            api.put(class);
            assert!(api.shared_at(&at).is_some(), "{at}");
        }
    }
}
