//! Users and administrators do something unusual.

use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::cluster::NAMESPACE;
use crate::history::unusual::{ClaimField, ClassKind, Labelled, Unusual};
use crate::model::view::{
    MANAGED_BY, annotation, collection, is_deleting, items, name as name_of, text,
};
use crate::secret;
use crate::users::claims::{self, NewClaim, REQUESTED};
use crate::users::class_versions::{self, class, kind};
use crate::users::{
    Refused, bytes, content_path, get, groups, path, pods, reserved, send, volume_path,
};

/// The annotation of a volume that users made free for other claims, with the name of the claim
/// that it had.
pub(crate) const FREED: &str = "simulator/freed";
/// The annotation of a volume that users gave other mount options.
pub(crate) const REMOUNTED: &str = "simulator/other-mount-options";

/// A label that means nothing.
const LABEL: &str = "simulator/label";

/// Does it. Errors of the API server are part of a history. `host` is the only node, if there is one.
pub(super) async fn act(
    client: &Client,
    unusual: &Unusual,
    host: Option<&str>,
) -> Result<(), Refused> {
    match unusual {
        Unusual::Claim {
            name,
            class,
            size,
            field,
        } => {
            let object = unusual_claim(
                client,
                (name.as_str(), class.as_deref(), size.as_str()),
                field.as_ref(),
            );
            let object = object.await?;
            let at = path("persistentvolumeclaims", "");
            send(client, Method::POST, &at, &object).await?;
        }
        Unusual::Rest { name, class } => {
            let at = collection("csistoragecapacities", "");
            let all = send(client, Method::GET, &at, &Value::Null).await?;
            let size = most_room(&all, class).to_string();
            claims::create(client, &NewClaim::plain(name, class, &size)).await?;
        }
        Unusual::FreeVolume { claim } => free(client, claim).await?,
        Unusual::MountOptions { claim, options } => {
            let claim = path("persistentvolumeclaims", claim);
            let claim = send(client, Method::GET, &claim, &Value::Null).await?;
            let volume = claim["spec"]["volumeName"].as_str().unwrap_or("none");
            let body = json!({"metadata": {"annotations": {REMOUNTED: "true"}},
                "spec": {"mountOptions": options}});
            send(client, Method::PATCH, &volume_path(volume), &body).await?;
        }
        Unusual::MakeClass { of, name, version } => {
            let class = class(*of, name, version);
            send(
                client,
                Method::POST,
                &class_versions::path(kind(*of)),
                &class,
            )
            .await?;
        }
        Unusual::RemoveClass { of, name } => remove_class(client, *of, name).await?,
        Unusual::Secret { name } => {
            let at = path("secrets", "");
            send(client, Method::POST, &at, &secret::object(name)).await?;
        }
        Unusual::DeleteSecret { name } => {
            send(client, Method::DELETE, &path("secrets", name), &json!({})).await?;
        }
        Unusual::Label { of, name, value } => {
            let at = match of {
                Labelled::Node => format!("/api/v1/nodes/{name}"),
                Labelled::Claim => path("persistentvolumeclaims", name),
            };
            let body = json!({"metadata": {"labels": {LABEL: value}}});
            send(client, Method::PATCH, &at, &body).await?;
        }
        Unusual::Reserve { node } => reserved::set(client, node, true).await?,
        Unusual::Release { node } => reserved::set(client, node, false).await?,
        Unusual::TolerantPod { name, claim } => {
            pods::create_tolerant(client, name, host, claim).await?;
        }
        // Where leaders die, the volume may be gone before one labels the content again, and then no
        // one knows the node.
        Unusual::UnlabelContent { snapshot } if host.is_some() => unlabel(client, snapshot).await?,
        Unusual::UnlabelContent { .. } => {}
        // Where leaders die, the group may go first, and then no one knows that it had the member.
        Unusual::DisownMember { group, number } if host.is_some() => {
            groups::disown_member(client, group, *number).await?;
        }
        Unusual::DisownMember { .. } => {}
    }
    Ok(())
}

/// The size of the largest volume of a class that a node has room for by its capacity object, in bytes:
/// at least one byte.
fn most_room(capacities: &Value, class: &str) -> u64 {
    let of_class =
        items(capacities, "/items").filter(|one| text(one, "/storageClassName") == class);
    let largest = of_class.map(|one| match &one["maximumVolumeSize"] {
        Value::Null => bytes(&one["capacity"]),
        size => bytes(size),
    });
    largest.max().unwrap_or_default().max(1)
}

/// Takes the label with its node away from the content of a snapshot that is ready, if the volume of
/// the snapshot is there.
async fn unlabel(client: &Client, snapshot: &str) -> Result<(), Refused> {
    let snapshot = get(client, &path("volumesnapshots", snapshot)).await?;
    let claim = text(&snapshot, "/spec/source/persistentVolumeClaimName");
    let claim = get(client, &path("persistentvolumeclaims", claim)).await?;
    let bound = text(&snapshot, "/status/boundVolumeSnapshotContentName");
    let at = content_path(if bound.is_empty() { "none" } else { bound });
    let content = get(client, &at).await?;
    let volume = volume_path(text(&claim, "/spec/volumeName"));
    let volume = get(client, &volume).await?;
    if is_unlabelled_safely(&snapshot, &claim, &volume, &content) {
        let body = json!({"metadata": {"labels": {MANAGED_BY: null}}});
        send(client, Method::PATCH, &at, &body).await?;
    }
    Ok(())
}

/// True if the node of a content can be found by its volume.
fn is_unlabelled_safely(snapshot: &Value, claim: &Value, volume: &Value, content: &Value) -> bool {
    let all = [snapshot, claim, volume, content];
    let handle = text(content, "/spec/source/volumeHandle");
    let has_volume = !handle.is_empty()
        && text(volume, "/spec/csi/volumeHandle") == handle
        && volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"];
    snapshot["status"]["readyToUse"] == true
        && content["status"]["readyToUse"] == true
        && has_volume
        && !all.into_iter().any(is_deleting)
}

async fn remove_class(client: &Client, of: ClassKind, name: &str) -> Result<(), Refused> {
    let at = format!("{}/{name}", class_versions::path(kind(of)));
    let removed = send(client, Method::DELETE, &at, &json!({})).await;
    removed.map(drop)
}

/// A claim with a field that few claims have.
async fn unusual_claim(
    client: &Client,
    (name, class, size): (&str, Option<&str>, &str),
    field: Option<&ClaimField>,
) -> Result<Value, Refused> {
    let mut object = NewClaim::plain(name, "", size).object();
    object["metadata"]["annotations"] = json!({REQUESTED: size});
    object["spec"]["storageClassName"] = json!(class);
    match field {
        Some(ClaimField::VolumeOf(claim)) => {
            let volume = volume_of(client, claim).await?;
            let volume = volume.as_ref().map_or("none", name_of);
            object["spec"]["volumeName"] = json!(volume);
        }
        Some(ClaimField::Selector(label)) => {
            object["spec"]["selector"] = json!({"matchLabels": {LABEL: label}});
        }
        Some(ClaimField::ForeignSource(name)) => {
            object["spec"]["dataSourceRef"] = json!({"apiGroup": "populator.example",
                "kind": "Populator", "name": name});
        }
        None => {}
    }
    Ok(object)
}

/// The volume that a claim of this name has, or had.
async fn volume_of(client: &Client, claim: &str) -> Result<Option<Value>, Refused> {
    let all = send(
        client,
        Method::GET,
        &collection("persistentvolumes", ""),
        &Value::Null,
    )
    .await?;
    let its = items(&all, "/items").filter(|volume| {
        let reference = &volume["spec"]["claimRef"];
        let is_its = reference["namespace"] == *NAMESPACE && reference["name"] == *claim;
        is_its || annotation(volume, FREED) == Some(claim)
    });
    Ok(its.last().cloned())
}

/// Makes a volume free for other claims that a claim has left with its data.
async fn free(client: &Client, claim: &str) -> Result<(), Refused> {
    let Some(volume) = volume_of(client, claim).await? else {
        return Ok(());
    };
    let is_left = text(&volume, "/status/phase") == "Released"
        && text(&volume, "/spec/persistentVolumeReclaimPolicy") == "Retain";
    if is_left {
        let body = json!({"metadata": {"annotations": {FREED: claim},
                "resourceVersion": volume["metadata"]["resourceVersion"]},
            "spec": {"claimRef": null}});
        send(client, Method::PATCH, &volume_path(name_of(&volume)), &body).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_volume_that_a_node_has_room_for() {
        let capacities = json!({"items": [
            {"storageClassName": "a", "capacity": "9Mi", "maximumVolumeSize": "4Ki"},
            {"storageClassName": "a", "capacity": "8Ki"},
            {"storageClassName": "b", "capacity": "1Gi"},
            {"storageClassName": "c", "capacity": "0"},
        ]});
        for (class, expected) in [("a", 8192), ("b", 1 << 30), ("c", 1), ("d", 1)] {
            assert_eq!(most_room(&capacities, class), expected, "{class}");
        }
    }

    #[test]
    fn a_content_loses_its_label_if_its_volume_is_there() {
        let there = || {
            let ready = json!({"readyToUse": true});
            [
                json!({"status": ready}),
                json!({"metadata": {"uid": "1"}}),
                json!({"spec": {"csi": {"volumeHandle": "v"}, "claimRef": {"uid": "1"}}}),
                json!({"status": ready, "spec": {"source": {"volumeHandle": "v"}}}),
            ]
        };
        let is_safe = |[snapshot, claim, volume, content]: [Value; 4]| {
            is_unlabelled_safely(&snapshot, &claim, &volume, &content)
        };
        assert!(is_safe(there()));
        for number in 0..4 {
            let mut objects = there();
            objects[number]["metadata"]["deletionTimestamp"] = json!("now");
            assert!(!is_safe(objects), "{number}");
        }
        let mut others = there();
        others[2]["spec"]["csi"]["volumeHandle"] = json!("w");
        assert!(!is_safe(others));
        let mut early = there();
        early[0]["status"]["readyToUse"] = json!(false);
        assert!(!is_safe(early));
    }
}
