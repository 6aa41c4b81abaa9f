//! Group snapshots of everything, and of raw block volumes that go at once.

use hostloop_test::front::fields::{is_bound, is_ready_to_use, name};
use hostloop_test::front::objects::{group_snapshot, restored, with};
use serde_json::{Value, json};

use crate::by_hand::ENOUGH;
use crate::tenant::Tenant;

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
    tenant
        .each(count, |n| blocks(tenant, format!("blocks-{n}")))
        .await
}

async fn blocks(tenant: &Tenant<'_>, group: String) -> Result<(), String> {
    let labels = json!({"metadata": {"labels": {"blocks": group}}});
    let claims = ["first", "second"].map(|word| format!("{group}-{word}"));
    for claim in &claims {
        let block = with(labels.clone(), json!({"spec": {"volumeMode": "Block"}}));
        tenant.bound(claim, block).await?;
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
    for claim in &claims {
        tenant.delete("PersistentVolumeClaim", claim).await;
    }
    let ended = |group: &Value| is_ready_to_use(group) || !group["status"]["error"].is_null();
    tenant
        .until("VolumeGroupSnapshot", &group, "ready", ended)
        .await?;
    let members = tenant
        .site
        .objects
        .list("VolumeSnapshot", &tenant.namespace)
        .await;
    let of_group = |s: &&Value| s["status"]["volumeGroupSnapshotName"] == *group;
    for member in members.iter().filter(of_group) {
        let claim = format!("restored-{}", name(member));
        let as_files = with(
            restored(name(member)),
            json!({"spec": {"volumeMode": "Filesystem"}}),
        );
        tenant.create(tenant.now(&claim, as_files)).await?;
        tokio::time::sleep(ENOUGH).await;
        let claim = tenant
            .get("PersistentVolumeClaim", &claim)
            .await
            .unwrap_or_default();
        if is_bound(&claim) {
            return Err(format!("{} became a filesystem", name(member)));
        }
    }
    Ok(())
}
