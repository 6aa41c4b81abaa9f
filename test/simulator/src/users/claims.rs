//! What users do with claims, and with the volumes that these have.

use kube::Client;
use serde_json::{Value, json};

use crate::cluster::NAMESPACE;
use crate::history::Source;
use crate::users::{
    Refused, bytes, delete, get, groups, patch, path, post, request_of, requested, volume_path,
};

/// The annotation of a claim that never grew, with the size of its request.
pub(super) const REQUESTED: &str = "simulator/requested";
/// The annotation of a copy with the size that is enough for it: that of its source's request.
pub(crate) const ENOUGH: &str = "simulator/enough";
/// The annotation of a copy with the UID of that source.
pub(crate) const ENOUGH_OF: &str = "simulator/enough-of";

/// A claim that a user makes.
pub(super) struct NewClaim<'a> {
    pub(super) name: &'a str,
    pub(super) class: &'a str,
    pub(super) size: &'a str,
    pub(super) block: bool,
    pub(super) mode: &'a str,
    pub(super) source: Option<&'a Source>,
    pub(super) attributes: Option<&'a str>,
}

impl<'a> NewClaim<'a> {
    /// One for a new volume with a filesystem.
    pub(super) fn plain(name: &'a str, class: &'a str, size: &'a str) -> NewClaim<'a> {
        NewClaim {
            name,
            class,
            size,
            block: false,
            mode: "ReadWriteOnce",
            source: None,
            attributes: None,
        }
    }

    pub(super) fn object(&self) -> Value {
        let NewClaim {
            name,
            class,
            size,
            mode,
            ..
        } = self;
        let mode_of_volume = if self.block { "Block" } else { "Filesystem" };
        let mut object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"storageClassName": class, "accessModes": [mode],
                "volumeMode": mode_of_volume,
                "resources": {"requests": {"storage": size}}}});
        let spec = &mut object["spec"];
        match self.source {
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
        if let Some(class) = self.attributes {
            spec["volumeAttributesClassName"] = json!(class);
        }
        object
    }
}

/// Creates a claim. Of a copy, it notes which size is enough for it.
pub(super) async fn create(client: &Client, claim: &NewClaim<'_>) -> Result<(), Refused> {
    let mut object = claim.object();
    let mut annotations = json!({REQUESTED: claim.size});
    let found = match claim.source {
        Some(Source::Snapshot(source)) => get(client, &path("volumesnapshots", source)).await,
        Some(Source::Claim(source)) => get(client, &path("persistentvolumeclaims", source)).await,
        None => Ok(Value::Null),
    };
    let found = found.unwrap_or_default();
    let enough = match claim.source {
        Some(Source::Snapshot(_)) => found["metadata"]["annotations"][ENOUGH].clone(),
        _ => enough_of(&found),
    };
    if enough.is_string() {
        annotations[ENOUGH] = enough;
        annotations[ENOUGH_OF] = found["metadata"]["uid"].clone();
    }
    object["metadata"]["annotations"] = annotations;
    post(client, &path("persistentvolumeclaims", ""), &object).await
}

/// The size that is enough for a copy of a claim: that of its own request.
pub(super) fn enough_of(claim: &Value) -> Value {
    let bound = claim["status"]["phase"] == "Bound";
    let requested = &claim["metadata"]["annotations"][REQUESTED];
    if bound {
        requested.clone()
    } else {
        Value::Null
    }
}

/// Gives a claim the label that groups select claims by.
pub(super) async fn label(client: &Client, name: &str, label: &str) -> Result<(), Refused> {
    let body = json!({"metadata": {"labels": {(groups::LABEL): label}}});
    patch(client, &path("persistentvolumeclaims", name), &body).await
}

/// Requests more of a claim, in bytes.
pub(super) async fn grow(client: &Client, name: &str, by: u64) -> Result<(), Refused> {
    let at = path("persistentvolumeclaims", name);
    let claim = get(client, &at).await?;
    let size = requested(&claim) + by;
    let mut grown = request_of(size);
    grown["metadata"]["annotations"] = json!({REQUESTED: null});
    patch(client, &at, &grown).await?;
    forget_enough(client, name).await
}

/// What is copied of a claim from now on may be larger, also from a snapshot that is yet to be
/// taken.
async fn forget_enough(client: &Client, claim: &str) -> Result<(), Refused> {
    let forget = json!({"metadata": {"annotations": {ENOUGH: null}}});
    let mut sources = vec![claim.to_owned()];
    for plural in ["volumesnapshots", "persistentvolumeclaims"] {
        let copies = get(client, &path(plural, "")).await?;
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
                patch(client, &path(plural, at), &forget).await?;
            }
            sources.extend((plural == "volumesnapshots").then(|| at.to_owned()));
        }
    }
    Ok(())
}

/// Requests only a little more than a claim has.
pub(super) async fn take_back(client: &Client, name: &str) -> Result<(), Refused> {
    let at = path("persistentvolumeclaims", name);
    let claim = get(client, &at).await?;
    let size = bytes(&claim["status"]["capacity"]["storage"]) + 1;
    if size > 1 && size < requested(&claim) {
        patch(client, &at, &request_of(size)).await?;
    }
    Ok(())
}

/// Selects a class of attributes.
pub(super) async fn select_attributes(
    client: &Client,
    name: &str,
    class: &str,
) -> Result<(), Refused> {
    let body = json!({"spec": {"volumeAttributesClassName": class}});
    patch(client, &path("persistentvolumeclaims", name), &body).await
}

/// Changes what happens to the data of a claim's volume.
pub(super) async fn reclaim(client: &Client, name: &str, policy: &str) -> Result<(), Refused> {
    let at = path_of_volume(client, name).await?;
    let body = json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    patch(client, &at, &body).await
}

/// Deletes the volume object of a claim.
pub(super) async fn delete_volume(client: &Client, name: &str) -> Result<(), Refused> {
    let at = path_of_volume(client, name).await?;
    delete(client, &at).await
}

async fn path_of_volume(client: &Client, claim: &str) -> Result<String, Refused> {
    let claim = get(client, &path("persistentvolumeclaims", claim)).await?;
    let volume = claim["spec"]["volumeName"].as_str().unwrap_or("none");
    Ok(volume_path(volume))
}
