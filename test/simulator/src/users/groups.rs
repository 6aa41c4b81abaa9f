//! What users do with groups of snapshots.

use std::time::Duration;

use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::cluster::{DRIVER, NAMESPACE};
use crate::history::Source;
use crate::model::view::{collection, group_reference, is_deleting, items, name as name_of};
use crate::users::claims::NewClaim;
use crate::users::{Refused, delete, get, group_content_path, patch, path, post, send};

/// The label that groups select claims by.
pub(super) const LABEL: &str = "group";
const VERSION: &str = "groupsnapshot.storage.k8s.io/v1";
const KIND: &str = "VolumeGroupSnapshot";
/// How long users leave a group alone after one of its members has lost its owner.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes a snapshot of all claims with a label, at one instant.
pub(super) async fn take(
    client: &Client,
    name: &str,
    label: &str,
    class: &str,
) -> Result<(), Refused> {
    let spec = json!({"volumeGroupSnapshotClassName": class,
        "source": {"selector": {"matchLabels": {LABEL: label}}}});
    post(
        client,
        &path("volumegroupsnapshots", ""),
        &group(name, &spec),
    )
    .await
}

fn group(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": VERSION, "kind": KIND,
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
}

/// Creates a group and a content for data with one member. Neither exists.
pub(super) async fn existing(
    client: &Client,
    name: &str,
    handle: &str,
    policy: &str,
) -> Result<(), Refused> {
    let content = content_of_existing(name, handle, policy);
    let contents = collection("volumegroupsnapshotcontents", "");
    let made = post(client, &contents, &content).await;
    let spec = json!({"source": {"volumeGroupSnapshotContentName": name_of(&content)}});
    post(
        client,
        &path("volumegroupsnapshots", ""),
        &group(name, &spec),
    )
    .await?;
    made
}

fn content_of_existing(group: &str, handle: &str, policy: &str) -> Value {
    let member = format!("{handle}-member");
    json!({"apiVersion": VERSION, "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": format!("existing-{group}")},
        "spec": {"driver": DRIVER, "deletionPolicy": policy,
            "source": {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": handle,
                "volumeSnapshotHandles": [member]}},
            "volumeGroupSnapshotRef": {"name": group, "namespace": NAMESPACE}}})
}

/// Deletes the content of a group.
pub(super) async fn delete_content(client: &Client, group: &str) -> Result<(), Refused> {
    let at = path("volumegroupsnapshots", group);
    let group = send(client, Method::GET, &at, &Value::Null).await?;
    let content = &group["status"]["boundVolumeGroupSnapshotContentName"];
    let at = group_content_path(content.as_str().unwrap_or("none"));
    send(client, Method::DELETE, &at, &json!({})).await?;
    Ok(())
}

/// Deletes a member of a group, by its number.
pub(super) async fn delete_member(
    client: &Client,
    group: &str,
    number: u64,
) -> Result<(), Refused> {
    let member = member(client, group, number).await?;
    delete(client, &path("volumesnapshots", &member)).await
}

/// Takes the owner away from a member of a group, by its number, if both are ready.
pub(super) async fn disown_member(
    client: &Client,
    group: &str,
    number: u64,
) -> Result<(), Refused> {
    let member = path("volumesnapshots", &member(client, group, number).await?);
    let snapshot = get(client, &member).await?;
    let group = get(client, &path("volumegroupsnapshots", group)).await?;
    if is_ready_member(&snapshot, &group) {
        let body = json!({"metadata": {"ownerReferences": null}});
        patch(client, &member, &body).await?;
        tokio::time::sleep(PATIENCE).await;
    }
    Ok(())
}

/// True if the status of a ready snapshot names a ready group. No one deletes either.
fn is_ready_member(snapshot: &Value, group: &Value) -> bool {
    let both = [snapshot, group];
    both.iter()
        .all(|one| one["status"]["readyToUse"] == true && !is_deleting(one))
        && snapshot["status"]["volumeGroupSnapshotName"] == *name_of(group)
}

/// Creates a claim with the data of a member of a group, by its number.
pub(super) async fn restore_member(
    client: &Client,
    group: &str,
    number: u64,
    claim: NewClaim<'_>,
) -> Result<(), Refused> {
    let source = Source::Snapshot(member(client, group, number).await?);
    let claim = NewClaim {
        source: Some(&source),
        ..claim
    };
    post(client, &path("persistentvolumeclaims", ""), &claim.object()).await
}

/// The name of a member of a group, by its number. There may be fewer: then it counts on from the
/// first.
async fn member(client: &Client, group: &str, number: u64) -> Result<String, Refused> {
    let at = path("volumesnapshots", "");
    let all = send(client, Method::GET, &at, &Value::Null).await?;
    let members: Vec<&str> = items(&all, "/items")
        .filter(|one| group_reference(one).is_some_and(|it| it["name"] == *group))
        .map(name_of)
        .collect();
    let number = usize::try_from(number).unwrap_or_default();
    let member = number
        .checked_rem(members.len())
        .and_then(|at| members.get(at));
    member.map(|&name| name.to_owned()).ok_or_else(|| Refused {
        code: 404,
        message: format!("group {group} has no members"),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ready(true, true, "g1", true)]
    #[case::not_ready(false, true, "g1", false)]
    #[case::of_a_group_that_is_not_ready(true, false, "g1", false)]
    #[case::of_another_group(true, true, "g2", false)]
    fn ready_members(
        #[case] is_ready: bool,
        #[case] is_group_ready: bool,
        #[case] named: &str,
        #[case] expected: bool,
    ) {
        let snapshot =
            json!({"status": {"readyToUse": is_ready, "volumeGroupSnapshotName": named}});
        let group = json!({"metadata": {"name": "g1"}, "status": {"readyToUse": is_group_ready}});
        assert_eq!(is_ready_member(&snapshot, &group), expected);
        let mut deleted = group.clone();
        deleted["metadata"]["deletionTimestamp"] = json!("now");
        assert!(!is_ready_member(&snapshot, &deleted));
    }

    #[test]
    fn a_content_for_existing_data_names_its_group() {
        let content = content_of_existing("g1", "missing", "Retain");
        let group = group("g1", &Value::Null);
        let of = &content["spec"]["volumeGroupSnapshotRef"];
        for field in ["name", "namespace"] {
            assert_eq!(of[field], group["metadata"][field], "{field}");
        }
        assert_eq!(content["metadata"]["name"], "existing-g1");
        let given = &content["spec"]["source"]["groupSnapshotHandles"];
        assert_eq!(given["volumeSnapshotHandles"], json!(["missing-member"]));
    }
}
