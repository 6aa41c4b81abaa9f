//! Group snapshots of everything, and of raw block volumes that go at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use hostloop_test::front::fields::{is_bound, is_ready_to_use, name};
use hostloop_test::front::objects::{group_snapshot, restored, with};
use serde_json::{Value, json};

use crate::tenant::Tenant;

/// More tries, if the deletions of the claims came before each group.
const TRIES: usize = 5;

/// Selectors of everything, in all forms, and of one value again and again.
pub(crate) async fn of_everything(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let label = |n| json!({"metadata": {"labels": {"everything": format!("{n}")}}});
    let claim = |n| tenant.now(&format!("everything-{n}"), label(n));
    tenant.create_all((0..count).map(claim)).await?;
    let exists = json!({"matchExpressions": [{"key": "everything", "operator": "Exists"}]});
    let absent = json!({"matchExpressions": [{"key": "nothing", "operator": "DoesNotExist"}]});
    let values = vec!["0"; 430];
    let repeated = json!({"matchExpressions":
        [{"key": "everything", "operator": "In", "values": values}]});
    let selectors = [json!({}), repeated, exists, absent, Value::Null];
    let group = |n: usize| {
        let source = json!({"selector": selectors[n % selectors.len()]});
        let name = format!("everything-{n}");
        let mut group = group_snapshot(&tenant.namespace, &name, "hostloop", ("", ""));
        group["spec"]["source"] = source;
        group
    };
    tenant
        .create_all((0..count.div_ceil(4)).map(group))
        .await
        .map(drop)
}

/// Raw block volumes are snapshotted as a group, and their claims deleted. Without the claims, the
/// snapshots still may not be restored as filesystems.
pub(crate) async fn of_blocks(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let members = AtomicUsize::new(0);
    let found = &members;
    tenant
        .each(count, |n| async move {
            let of_one = blocks(tenant, format!("blocks-{n}"), false).await?;
            found.fetch_add(of_one, Ordering::Relaxed);
            Ok(())
        })
        .await?;
    for n in count..count + TRIES {
        if members.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        members.fetch_add(
            blocks(tenant, format!("blocks-{n}"), true).await?,
            Ordering::Relaxed,
        );
    }
    if members.load(Ordering::Relaxed) > 0 {
        return Ok(());
    }
    Err("no group had a member, so nothing was tried".to_owned())
}

/// Tries it with one group. Returns how many members it had: none if the deletions came first,
/// which is unlikely if they wait until the group has its content.
async fn blocks(tenant: &Tenant<'_>, group: String, waits: bool) -> Result<usize, String> {
    let labels = json!({"metadata": {"labels": {"blocks": group}}});
    let block = json!({"spec": {"volumeMode": "Block"}});
    let claims = ["first", "second"].map(|word| format!("{group}-{word}"));
    for claim in &claims {
        tenant
            .bound(claim, with(labels.clone(), block.clone()))
            .await?;
    }
    let selected = ("blocks", group.as_str());
    tenant
        .create(group_snapshot(
            &tenant.namespace,
            &group,
            "hostloop",
            selected,
        ))
        .await?;
    if waits {
        let has_content =
            |group: &Value| !group["status"]["boundVolumeGroupSnapshotContentName"].is_null();
        tenant
            .until("VolumeGroupSnapshot", &group, "bound", has_content)
            .await?;
    }
    for claim in &claims {
        tenant.delete("PersistentVolumeClaim", claim).await;
    }
    let ended = |group: &Value| is_ready_to_use(group) || !group["status"]["error"].is_null();
    tenant
        .until("VolumeGroupSnapshot", &group, "ready", ended)
        .await?;
    let mut members = tenant
        .site
        .objects
        .list("VolumeSnapshot", &tenant.namespace)
        .await;
    members.retain(|member| member["status"]["volumeGroupSnapshotName"] == *group);
    for member in members.iter().map(name) {
        // Before that, a restore waits for another reason.
        tenant
            .until("VolumeSnapshot", member, "ready", is_ready_to_use)
            .await?;
        let as_files = json!({"spec": {"volumeMode": "Filesystem"}});
        let as_files = with(restored(member), as_files);
        tenant.create(tenant.now(&files(member), as_files)).await?;
        tenant
            .warned(
                "PersistentVolumeClaim",
                &files(member),
                "ProvisioningFailed",
            )
            .await?;
    }
    // The snapshots can be restored as what they are.
    if let Some(member) = members.first().map(name) {
        let as_block = with(restored(member), block);
        tenant.bound(&format!("block-{member}"), as_block).await?;
    }
    for member in members.iter().map(name) {
        let claim = tenant
            .get("PersistentVolumeClaim", &files(member))
            .await
            .unwrap_or_default();
        if is_bound(&claim) {
            return Err(format!("{member} became a filesystem"));
        }
    }
    Ok(members.len())
}

/// The name of the claim that restores a block volume as a filesystem.
fn files(member: &str) -> String {
    format!("files-{member}")
}
