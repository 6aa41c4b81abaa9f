//! Pods that users make.

use kube::Client;
use serde_json::{Value, json};

use crate::cluster::{DRIVER, NAMESPACE};
use crate::users::claims::NewClaim;
use crate::users::{RESERVED_FOR, Refused, get, path, post};

/// A label of nodes that are to be retired. None is.
const RETIRED: &str = "simulator/retired";

/// Creates a pod that uses claims.
pub(super) async fn create(
    client: &Client,
    name: &str,
    host: Option<&str>,
    claims: &[String],
) -> Result<(), Refused> {
    let mut volumes = Vec::new();
    for (number, claim) in claims.iter().enumerate() {
        let found = get(client, &path("persistentvolumeclaims", claim)).await;
        let block = found.is_ok_and(|claim| claim["spec"]["volumeMode"] == "Block");
        let volume = json!({"name": format!("v{number}"),
            "persistentVolumeClaim": {"claimName": claim}});
        volumes.push((volume, block));
    }
    post(client, &path("pods", ""), &pod(name, host, volumes)).await
}

/// Creates a pod with an inline volume.
pub(super) async fn create_inline(
    client: &Client,
    name: &str,
    host: Option<&str>,
    size: &str,
) -> Result<(), Refused> {
    let volume = json!({"name": "v0", "csi": {"driver": DRIVER,
        "volumeAttributes": {"size": size}}});
    let pod = pod(name, host, vec![(volume, false)]);
    post(client, &path("pods", ""), &pod).await
}

/// Creates a pod with a claim that belongs to it.
pub(super) async fn create_ephemeral(
    client: &Client,
    name: &str,
    host: Option<&str>,
    (class, size): (&str, &str),
) -> Result<(), Refused> {
    let spec = NewClaim::plain("", class, size).object()["spec"].take();
    let volume = json!({"name": "v0", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}});
    let pod = pod(name, host, vec![(volume, false)]);
    post(client, &path("pods", ""), &pod).await
}

/// Creates a pod that uses a claim and may run on reserved nodes, but on none that is to be retired.
pub(super) async fn create_tolerant(
    client: &Client,
    name: &str,
    host: Option<&str>,
    claim: &str,
) -> Result<(), Refused> {
    let volume = json!({"name": "v0", "persistentVolumeClaim": {"claimName": claim}});
    let mut pod = pod(name, host, vec![(volume, false)]);
    pod["spec"]["tolerations"] =
        json!([{"key": RESERVED_FOR, "operator": "Exists", "effect": "NoSchedule"}]);
    let stays = json!({"matchExpressions": [{"key": RETIRED, "operator": "DoesNotExist"}]});
    pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [stays]});
    post(client, &path("pods", ""), &pod).await
}

fn pod(name: &str, host: Option<&str>, volumes: Vec<(Value, bool)>) -> Value {
    let (mut mounts, mut devices, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for (volume, block) in volumes {
        if block {
            devices.push(json!({"name": volume["name"], "devicePath": "/dev/v"}))
        } else {
            mounts.push(json!({"name": volume["name"], "mountPath": "/v"}))
        }
        all.push(volume);
    }
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"volumes": all, "restartPolicy": "Always",
            "containers": [{"name": "c", "image": "i", "volumeMounts": mounts,
                "volumeDevices": devices}]}});
    if let Some(host) = host {
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": host});
    }
    pod
}
