//! The tests' pods.

use serde_json::{Value, json};

use super::BUSYBOX;

/// A pod that runs this command, with the claims `files` at `/NAME` and the claims `devices` as
/// `/dev/NAME`, with this change of its spec.
pub fn pod(
    namespace: &str,
    name: &str,
    command: &[&str],
    (files, devices): (&[&str], &[&str]),
    change: Value,
) -> Value {
    let mount = |c: &&str| json!({"name": c, "mountPath": format!("/{c}")});
    let device = |c: &&str| json!({"name": c, "devicePath": format!("/dev/{c}")});
    let volume = |c: &&str| json!({"name": c, "persistentVolumeClaim": {"claimName": c}});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": BUSYBOX, "command": command,
                "volumeMounts": files.iter().map(mount).collect::<Vec<_>>(),
                "volumeDevices": devices.iter().map(device).collect::<Vec<_>>()}],
            "volumes": files.iter().chain(devices).map(volume).collect::<Vec<_>>()}});
    json_patch::merge(&mut pod["spec"], &change);
    pod
}
