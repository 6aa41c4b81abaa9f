//! Secrets that classes name: they are found, missing ones are reported, and their values appear
//! nowhere.

use hostloop_test::deployed::NAMESPACE;
use serde_json::json;

use crate::objects::assert_text;
use crate::space::Space;
use crate::world::World;

/// A value that must not appear in any log.
const VALUE: &str = "unspeakable-4711";
/// The same in base64, as a Secret holds it.
const ENCODED: &str = "dW5zcGVha2FibGUtNDcxMQ==";

fn secret(named: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": named},
        "stringData": {"token": VALUE}})
}

/// Kubelet reads those of staging and publishing and sends them along: a pod waits for both.
pub(crate) fn secrets_of_staging_and_publishing_are_delivered(world: &World) {
    let space = Space::new(world, "node-secrets");
    let parameters = json!({
        "csi.storage.k8s.io/node-stage-secret-name": "stage-${pvc.name}",
        "csi.storage.k8s.io/node-stage-secret-namespace": "${pvc.namespace}",
        "csi.storage.k8s.io/node-publish-secret-name": "publish",
        "csi.storage.k8s.io/node-publish-secret-namespace": "${pvc.namespace}"});
    let class = space.class("secret", json!({"parameters": parameters}));
    world
        .cluster()
        .may_use_secrets(NAMESPACE, &space.name, &["stage-data", "publish"]);
    space.claim("data", &class, json!({}));
    let volume = space.volume("data");
    assert_text(&volume, "/spec/csi/nodeStageSecretRef/name", "stage-data");
    let namespace = "/spec/csi/nodePublishSecretRef/namespace";
    assert_text(&volume, namespace, &space.name);

    space.pod("pod", &["data"]);
    space.event("pod", "FailedMount", "\"stage-data\" not found");
    space.create(secret("stage-data"));
    space.event("pod", "FailedMount", "\"publish\" not found");
    space.create(secret("publish"));
    space.ready("pod");
    space.sh("pod", "echo x > /data/x");
    assert_unspoken(&space);
    space.end();
}

/// The controllers read those of their calls, by the rights of the component alone.
pub(crate) fn secrets_of_provisioning_are_read_and_missing_ones_named(world: &World) {
    const NAME: &str = "hostloop-provisioner";
    world.delete("Secret", NAMESPACE, NAME);
    let space = Space::new(world, "secrets");
    let parameters = json!({
        "csi.storage.k8s.io/provisioner-secret-name": NAME,
        "csi.storage.k8s.io/provisioner-secret-namespace": NAMESPACE});
    let class = space.class("secret", json!({"parameters": parameters}));
    space.claim("data", &class, json!({}));
    space.event("data", "ProvisioningFailed", NAME);
    assert_text(&space.claim_now("data"), "/status/phase", "Pending");
    let mut made = secret(NAME);
    made["metadata"]["namespace"] = json!(NAMESPACE);
    world.create(made);
    let volume = space.volume("data");
    let annotations = &volume["metadata"]["annotations"];
    let deletion = "/volume.kubernetes.io~1provisioner-deletion-secret-name";
    assert_text(annotations, deletion, NAME);
    assert_unspoken(&space);
    // It is deleted with the same secret.
    space.end();
    world.delete("Secret", NAMESPACE, NAME);
}

/// Fails if a secret's value is in a log, an event or an object. To be called while the secrets are
/// in use: later the objects are gone, and so are the logs of pods that were replaced.
fn assert_unspoken(space: &Space) {
    let world = space.world;
    let silent = |what: &str, text: &str| {
        for value in [VALUE, ENCODED] {
            assert!(!text.contains(value), "{what} contains a secret");
        }
    };
    let log = world.driver_log();
    assert!(!log.is_empty(), "the driver logs its calls");
    silent("the driver's log", &log);
    for kind in ["Event", "PersistentVolumeClaim", "Pod"] {
        let objects = world.list(kind, &space.name);
        assert!(kind == "Pod" || !objects.is_empty(), "there is a {kind}");
        for object in objects {
            silent(kind, &object.to_string());
        }
    }
    for kind in ["PersistentVolume", "VolumeAttachment", "CSINode", "Event"] {
        for object in world.list(kind, "") {
            silent(kind, &object.to_string());
        }
    }
}
