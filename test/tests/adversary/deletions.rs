//! Deletions that never end, and deletions in the wrong order.

use hostloop_test::front::objects::{cloned, group_snapshot, restored, with};
use serde_json::json;

use crate::tenant::{FINALIZER, Tenant};

const CLAIM: &str = "PersistentVolumeClaim";

/// Objects with a finalizer of the adversary's, which are deleted.
pub(crate) async fn never_end(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let kept = || json!({"metadata": {"finalizers": [FINALIZER], "labels": {"never": "ends"}}});
    tenant.bound("never-source", json!({})).await?;
    let claims = (0..count).map(|n| tenant.now(&format!("never-{n}"), kept()));
    let snapshots = (0..count).map(|n| {
        with(
            tenant.snapshot(&format!("never-{n}"), "never-source"),
            kept(),
        )
    });
    let group = |n| {
        let name = format!("never-{n}");
        with(
            group_snapshot(&tenant.namespace, &name, "hostloop", ("never", "ends")),
            kept(),
        )
    };
    tenant.create_all(claims).await?;
    tenant
        .create_all(snapshots.chain((0..count / 4).map(group)))
        .await?;
    for n in 0..count {
        for kind in [CLAIM, "VolumeSnapshot", "VolumeGroupSnapshot"] {
            tenant.delete(kind, &format!("never-{n}")).await;
        }
    }
    Ok(())
}

/// Sources that are deleted before their copies are made.
pub(crate) async fn odd_order(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let steps = |n: usize| async move {
        let name = |word: &str| format!("order-{word}-{n}");
        let (source, snapshot, group) = (name("source"), name("snapshot"), name("group"));
        tenant
            .bound(&source, json!({"metadata": {"labels": {"order": source}}}))
            .await?;
        tenant.create(tenant.snapshot(&snapshot, &source)).await?;
        tenant
            .create(tenant.now(&name("clone"), cloned(&source)))
            .await?;
        tenant
            .create(tenant.now(&name("restore"), restored(&snapshot)))
            .await?;
        let selected = ("order", source.as_str());
        tenant
            .create(group_snapshot(
                &tenant.namespace,
                &group,
                "hostloop",
                selected,
            ))
            .await?;
        match n % 4 {
            0 => tenant.delete(CLAIM, &source).await,
            1 => tenant.delete("VolumeSnapshot", &snapshot).await,
            2 => {
                tenant.delete("VolumeGroupSnapshot", &group).await;
                tenant.delete(CLAIM, &source).await;
            }
            _ => {
                for copy in [name("clone"), name("restore"), source] {
                    tenant.delete(CLAIM, &copy).await;
                }
            }
        }
        Ok(())
    };
    tenant.each(count, steps).await
}
