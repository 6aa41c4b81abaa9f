//! Users do what a history says, through the API server.

use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use crate::cluster::{DRIVER, GREEDY, NAMESPACE, storage_class};
use crate::history::{Action, Source};

/// The annotation of a claim that never grew, with the size of its request.
const REQUESTED: &str = "simulator/asked";
/// The annotation of a copy with the size that is enough for it: that of its source's request.
pub(crate) const ENOUGH: &str = "simulator/enough";
/// The annotation of a copy with the UID of that source.
pub(crate) const ENOUGH_OF: &str = "simulator/enough-of";

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const NAMESPACES: &str = "/api/v1/namespaces";
/// The path of the snapshot kinds.
pub(crate) const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1";

/// An error of the API server.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: u16,
    pub(crate) message: String,
}

/// Sends one request.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, Refused> {
    let mut request = Request::builder().method(method.clone()).uri(path);
    if method == Method::PATCH {
        request = request.header("content-type", "application/merge-patch+json");
    } else if method != Method::GET {
        request = request.header("content-type", "application/json");
    }
    let bytes = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = request.body(bytes).expect("a request");
    client
        .request::<Value>(request)
        .await
        .map_err(|error| match error {
            kube::Error::Api(status) => Refused {
                code: status.code,
                message: status.message,
            },
            other => Refused {
                code: 0,
                message: other.to_string(),
            },
        })
}

/// The path of claims, pods or snapshots in the users' namespace.
pub(crate) fn path(plural: &str, name: &str) -> String {
    path_in(NAMESPACE, plural, name)
}

/// The path of claims, pods or snapshots in a namespace.
pub(crate) fn path_in(namespace: &str, plural: &str, name: &str) -> String {
    let group = match plural {
        "volumesnapshots" => SNAPSHOTS,
        _ => "/api/v1",
    };
    let name = if name.is_empty() {
        String::new()
    } else {
        format!("/{name}")
    };
    format!("{group}/namespaces/{namespace}/{plural}{name}")
}

pub(crate) fn volume_path(name: &str) -> String {
    format!("/api/v1/persistentvolumes/{name}")
}

pub(crate) fn content_path(name: &str) -> String {
    format!("{SNAPSHOTS}/volumesnapshotcontents/{name}")
}

/// Does one thing. Errors of the API server are part of a history. New pods go to the node with
/// this host name, if there is one.
pub(crate) async fn act(
    client: &Client,
    action: &Action,
    host: Option<&str>,
) -> Result<(), Refused> {
    let post = async |path: &str, body: Value| send(client, Method::POST, path, &body).await;
    let patch = async |path: &str, body: Value| send(client, Method::PATCH, path, &body).await;
    let get = async |path: &str| send(client, Method::GET, path, &Value::Null).await;
    let delete = async |path: &str| send(client, Method::DELETE, path, &json!({})).await;
    match action {
        Action::Claim {
            name,
            class,
            size,
            block,
            mode,
            source,
            attributes,
        } => {
            let mut object = claim(
                name,
                class,
                size,
                *block,
                mode,
                source.as_ref(),
                attributes.as_ref(),
            );
            let mut annotations = json!({REQUESTED: size});
            let found = match source {
                Some(Source::Snapshot(source)) => get(&path("volumesnapshots", source)).await,
                Some(Source::Claim(source)) => get(&path("persistentvolumeclaims", source)).await,
                None => Ok(Value::Null),
            };
            let found = found.unwrap_or_default();
            let enough = match source {
                Some(Source::Snapshot(_)) => found["metadata"]["annotations"][ENOUGH].clone(),
                _ => enough_of(&found),
            };
            if enough.is_string() {
                annotations[ENOUGH] = enough;
                annotations[ENOUGH_OF] = found["metadata"]["uid"].clone();
            }
            object["metadata"]["annotations"] = annotations;
            post(&path("persistentvolumeclaims", ""), object).await?;
        }
        Action::DeleteClaim { name } => {
            delete(&path("persistentvolumeclaims", name)).await?;
        }
        Action::Pod { name, claims } => {
            let mut volumes = Vec::new();
            for (number, claim) in claims.iter().enumerate() {
                let found = get(&path("persistentvolumeclaims", claim)).await;
                let block = found.is_ok_and(|claim| claim["spec"]["volumeMode"] == "Block");
                volumes.push((format!("v{number}"), json!({"claimName": claim}), block));
            }
            let named = volumes.into_iter().map(|(volume, claim, block)| {
                (
                    json!({"name": volume, "persistentVolumeClaim": claim}),
                    block,
                )
            });
            post(&path("pods", ""), pod(name, host, named.collect())).await?;
        }
        Action::InlinePod { name, size } => {
            let volume = json!({"name": "v0", "csi": {"driver": DRIVER,
                "volumeAttributes": {"size": size}}});
            post(&path("pods", ""), pod(name, host, vec![(volume, false)])).await?;
        }
        Action::EphemeralPod { name, class, size } => {
            let spec = claim("", class, size, false, "ReadWriteOnce", None, None)["spec"].take();
            let volume = json!({"name": "v0",
                "ephemeral": {"volumeClaimTemplate": {"spec": spec}}});
            post(&path("pods", ""), pod(name, host, vec![(volume, false)])).await?;
        }
        Action::DeletePod { name } => {
            delete(&path("pods", name)).await?;
        }
        Action::Snapshot { name, claim, class } => {
            let spec = json!({"volumeSnapshotClassName": class,
                "source": {"persistentVolumeClaimName": claim}});
            let mut object = snapshot(name, &spec);
            let enough = enough_of(
                &get(&path("persistentvolumeclaims", claim))
                    .await
                    .unwrap_or_default(),
            );
            if enough.is_string() {
                object["metadata"]["annotations"] = json!({ENOUGH: enough});
            }
            post(&path("volumesnapshots", ""), object).await?;
        }
        Action::Preprovisioned {
            name,
            handle,
            policy,
        } => {
            let content = format!("existing-{name}");
            let object = json!({"apiVersion": "snapshot.storage.k8s.io/v1",
                "kind": "VolumeSnapshotContent", "metadata": {"name": content},
                "spec": {"driver": DRIVER, "deletionPolicy": policy,
                    "source": {"snapshotHandle": handle},
                    "volumeSnapshotRef": {"name": name, "namespace": NAMESPACE}}});
            let made = post(&format!("{SNAPSHOTS}/volumesnapshotcontents"), object).await;
            let spec = json!({"source": {"volumeSnapshotContentName": content}});
            post(&path("volumesnapshots", ""), snapshot(name, &spec)).await?;
            made?;
        }
        Action::DeleteSnapshot { name } => {
            delete(&path("volumesnapshots", name)).await?;
        }
        Action::DeleteContent { snapshot } => {
            let snapshot = get(&path("volumesnapshots", snapshot)).await?;
            let content = &snapshot["status"]["boundVolumeSnapshotContentName"];
            delete(&content_path(content.as_str().unwrap_or("none"))).await?;
        }
        Action::Grow { name, by } => {
            let path = path("persistentvolumeclaims", name);
            let claim = get(&path).await?;
            let size = bytes(&claim["spec"]["resources"]["requests"]["storage"]) + by;
            let mut grown = request_of(size);
            grown["metadata"]["annotations"] = json!({REQUESTED: null});
            patch(&path, grown).await?;
            // What is copied from now on may be larger, also from a snapshot that is yet to be taken.
            let forget = json!({"metadata": {"annotations": {ENOUGH: null}}});
            let mut sources = vec![name.to_string()];
            for plural in ["volumesnapshots", "persistentvolumeclaims"] {
                let copies = get(&self::path(plural, "")).await?;
                for copy in copies["items"].as_array().into_iter().flatten() {
                    let of_claim = &copy["spec"]["source"]["persistentVolumeClaimName"];
                    let source = of_claim
                        .as_str()
                        .or(copy["spec"]["dataSource"]["name"].as_str());
                    if !source.is_some_and(|source| sources.iter().any(|known| known == source)) {
                        continue;
                    }
                    let at = copy["metadata"]["name"].as_str().unwrap_or_default();
                    if !copy["metadata"]["annotations"][ENOUGH].is_null() {
                        patch(&self::path(plural, at), forget.clone()).await?;
                    }
                    sources.extend((plural == "volumesnapshots").then(|| at.to_owned()));
                }
            }
        }
        Action::TakeBack { name } => {
            let path = path("persistentvolumeclaims", name);
            let claim = get(&path).await?;
            let size = bytes(&claim["status"]["capacity"]["storage"]) + 1;
            if size > 1 && size < bytes(&claim["spec"]["resources"]["requests"]["storage"]) {
                patch(&path, request_of(size)).await?;
            }
        }
        Action::Attributes { name, class } => {
            let body = json!({"spec": {"volumeAttributesClassName": class}});
            patch(&path("persistentvolumeclaims", name), body).await?;
        }
        Action::Reclaim { name, policy } => {
            let claim = get(&path("persistentvolumeclaims", name)).await?;
            let volume = claim["spec"]["volumeName"].as_str().unwrap_or("none");
            let body = json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
            patch(&volume_path(volume), body).await?;
        }
        Action::DeleteVolume { name } => {
            let claim = get(&path("persistentvolumeclaims", name)).await?;
            let volume = claim["spec"]["volumeName"].as_str().unwrap_or("none");
            delete(&volume_path(volume)).await?;
        }
        Action::Class { name } => {
            if let Some(class) = storage_class(name) {
                post(CLASSES, class).await?;
            }
        }
        Action::DeleteClass { name } => {
            delete(&format!("{CLASSES}/{name}")).await?;
        }
        Action::Namespace => {
            let object = json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": NAMESPACE}});
            post(NAMESPACES, object).await?;
        }
        Action::DeleteNamespace => {
            delete(&format!("{NAMESPACES}/{NAMESPACE}")).await?;
        }
        // The cluster does it.
        Action::World { .. } => {}
    }
    Ok(())
}

/// Takes a snapshot of a volume in the greedy namespace, and asks for so many copies of it. Unlike
/// those of a volume, they need not follow each other. Volume and snapshot stay.
pub(crate) async fn be_greedy(client: &Client, copies: u64) -> Result<(), Refused> {
    let at = path_in(GREEDY, "persistentvolumeclaims", "");
    let all = greedy_claim("all", None);
    let spec = json!({"volumeSnapshotClassName": "deleted",
        "source": {"persistentVolumeClaimName": "all"}});
    let mut taken = snapshot("all", &spec);
    taken["metadata"]["namespace"] = json!(GREEDY);
    // They may be there.
    let _ = send(client, Method::POST, &at, &all).await;
    let snapshots = path_in(GREEDY, "volumesnapshots", "");
    let _ = send(client, Method::POST, &snapshots, &taken).await;
    for number in 0..copies {
        let source = Source::Snapshot("all".to_owned());
        let copy = greedy_claim(&format!("copy-{number}"), Some(&source));
        send(client, Method::POST, &at, &copy).await?;
    }
    Ok(())
}

fn greedy_claim(name: &str, source: Option<&Source>) -> Value {
    let (class, size, mode) = ("ext4-now", "10Mi", "ReadWriteOnce");
    let mut claim = claim(name, class, size, false, mode, source, None);
    claim["metadata"]["namespace"] = json!(GREEDY);
    claim
}

/// Deletes the copies of the greedy namespace.
pub(crate) async fn be_modest(client: &Client) -> Result<(), Refused> {
    let at = path_in(GREEDY, "persistentvolumeclaims", "");
    let claims = send(client, Method::GET, &at, &Value::Null).await?;
    for claim in claims["items"].as_array().into_iter().flatten() {
        let name = claim["metadata"]["name"].as_str().unwrap_or_default();
        if name.starts_with("copy-") {
            let at = path_in(GREEDY, "persistentvolumeclaims", name);
            send(client, Method::DELETE, &at, &json!({})).await?;
        }
    }
    Ok(())
}

/// The size that is enough for a copy of a claim: that of its own request.
fn enough_of(claim: &Value) -> Value {
    let bound = claim["status"]["phase"] == "Bound";
    let requested = &claim["metadata"]["annotations"][REQUESTED];
    if bound {
        requested.clone()
    } else {
        Value::Null
    }
}

pub(crate) fn request_of(bytes: u64) -> Value {
    json!({"spec": {"resources": {"requests": {"storage": bytes.to_string()}}}})
}

fn claim(
    name: &str,
    class: &str,
    size: &str,
    block: bool,
    mode: &str,
    source: Option<&Source>,
    attributes: Option<&String>,
) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"storageClassName": class, "accessModes": [mode],
            "volumeMode": if block { "Block" } else { "Filesystem" },
            "resources": {"requests": {"storage": size}}}});
    let spec = &mut object["spec"];
    match source {
        Some(Source::Snapshot(name)) => {
            let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
                "name": name});
            spec["dataSource"] = source.clone();
            spec["dataSourceRef"] = source;
        }
        Some(Source::Claim(name)) => {
            let source = json!({"kind": "PersistentVolumeClaim", "name": name});
            spec["dataSource"] = source.clone();
            spec["dataSourceRef"] = source;
        }
        None => {}
    }
    if let Some(class) = attributes {
        spec["volumeAttributesClassName"] = json!(class);
    }
    object
}

fn snapshot(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
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

/// The bytes of a quantity, rounded down; 0 if there is none.
pub(crate) fn bytes(quantity: &Value) -> u64 {
    let nanos = hostloop_fake_api::quantity::nanos(quantity.as_str().unwrap_or_default());
    u64::try_from(nanos.unwrap_or_default() / 1_000_000_000).unwrap_or_default()
}
