//! Secrets that classes name: they are found, their want is told, and their values are nowhere.

use serde_json::json;

use crate::objects::text;
use crate::space::Space;
use crate::world::{NAMESPACE, World};

/// What no log may ever show.
pub(crate) const VALUE: &str = "unspeakable-4711";

fn secret(named: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": named},
        "stringData": {"token": VALUE}})
}

/// Kubelet reads those of staging and publishing and sends them along: a pod waits for both.
pub(crate) fn secrets_of_staging_and_publishing_are_delivered(world: &World) {
    let space = Space::new(world, "node-secrets");
    let class = space.class(
        "secret",
        json!({"parameters": {
        "csi.storage.k8s.io/node-stage-secret-name": "stage-${pvc.name}",
        "csi.storage.k8s.io/node-stage-secret-namespace": "${pvc.namespace}",
        "csi.storage.k8s.io/node-publish-secret-name": "publish",
        "csi.storage.k8s.io/node-publish-secret-namespace": "${pvc.namespace}"}}),
    );
    may_use(&space, &["stage-data", "publish"]);
    space.claim("data", &class, json!({}));
    let volume = space.volume("data");
    assert_eq!(
        text(&volume, "/spec/csi/nodeStageSecretRef/name"),
        "stage-data"
    );
    assert_eq!(
        text(&volume, "/spec/csi/nodePublishSecretRef/namespace"),
        space.name
    );

    space.pod("pod", &["data"]);
    space.event("pod", "FailedMount", "\"stage-data\" not found");
    space.create(secret("stage-data"));
    space.event("pod", "FailedMount", "\"publish\" not found");
    space.create(secret("publish"));
    space.ready("pod");
    space.sh("pod", "echo x > /data/x");
    space.end();
    assert_unspoken(world);
}

/// Allows the node account to name these secrets in volumes, but not to read them.
fn may_use(space: &Space, secrets: &[&str]) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let metadata = json!({"name": "use-secrets", "namespace": space.name});
    let role = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets,
            "verbs": ["use"]}]});
    let binding = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "use-secrets"},
        "subjects": [{"kind": "ServiceAccount", "name": "hostloop", "namespace": "hostloop"}]});
    for object in [role, binding] {
        space.world.cluster().apply(&object.to_string());
    }
}

/// The controllers read those of their calls, by the rights of the component alone.
pub(crate) fn secrets_of_provisioning_are_read_and_missing_ones_named(world: &World) {
    const NAME: &str = "hostloop-provisioner";
    world.delete("Secret", NAMESPACE, NAME);
    let space = Space::new(world, "secrets");
    let class = space.class(
        "secret",
        json!({"parameters": {
        "csi.storage.k8s.io/provisioner-secret-name": NAME,
        "csi.storage.k8s.io/provisioner-secret-namespace": NAMESPACE}}),
    );
    space.claim("data", &class, json!({}));
    space.event("data", "ProvisioningFailed", NAME);
    assert_eq!(text(&space.claim_now("data"), "/status/phase"), "Pending");
    let mut made = secret(NAME);
    made["metadata"]["namespace"] = json!(NAMESPACE);
    world.create(&made);
    let volume = space.volume("data");
    let annotations = &volume["metadata"]["annotations"];
    assert_eq!(
        text(
            annotations,
            "/volume.kubernetes.io~1provisioner-deletion-secret-name"
        ),
        NAME
    );
    // It is deleted with the same secret.
    space.end();
    world.delete("Secret", NAMESPACE, NAME);
    assert_unspoken(world);
}

fn assert_unspoken(world: &World) {
    let log = world.driver_log();
    assert!(!log.contains(VALUE), "a secret was logged");
}
