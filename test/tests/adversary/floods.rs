//! Many ordinary objects, and the same objects again and again.

use hostloop_test::front::objects::{group_snapshot, sized};
use serde_json::json;

use crate::site::LATER;
use crate::tenant::Tenant;

/// Claims that are bound at once, each deleted in turn.
pub(crate) async fn claims(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let churn = |n: usize| async move {
        let name = format!("churn-{n}");
        tenant.create(tenant.now(&name, json!({}))).await?;
        tenant.delete("PersistentVolumeClaim", &name).await;
        Ok(())
    };
    tenant.each(count, churn).await
}

pub(crate) async fn snapshots(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.bound("churned", json!({})).await?;
    let churn = |n: usize| async move {
        let name = format!("churn-{n}");
        tenant.create(tenant.snapshot(&name, "churned")).await?;
        tenant.delete("VolumeSnapshot", &name).await;
        Ok(())
    };
    tenant.each(count, churn).await
}

pub(crate) async fn immediate(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let claim = |n| tenant.now(&format!("now-{n}"), json!({}));
    tenant.create_all((0..count).map(claim)).await.map(drop)
}

pub(crate) async fn waiting(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let claim = |n| tenant.claim(&format!("later-{n}"), LATER, "1Mi", json!({}));
    tenant.create_all((0..count).map(claim)).await.map(drop)
}

/// Groups of one claim, each deleted in turn.
pub(crate) async fn groups(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let label = json!({"metadata": {"labels": {"grouped": "yes"}}});
    tenant.bound("grouped", label).await?;
    tenant
        .each(count, |n| async move {
            let name = format!("churn-{n}");
            let selected = ("grouped", "yes");
            let group = group_snapshot(&tenant.namespace, &name, "hostloop", selected);
            tenant.create(group).await?;
            tenant.delete("VolumeGroupSnapshot", &name).await;
            Ok(())
        })
        .await
}

/// Expansions of a few claims, each beyond the one before.
pub(crate) async fn expansions(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    const CLAIMS: usize = 8;
    tenant
        .each(CLAIMS, |n| async move {
            let name = format!("stretched-{n}");
            tenant.bound(&name, json!({})).await?;
            for step in 0..count / CLAIMS {
                let size = sized(&format!("{}Ki", 1024 + 4 * (step + 1)));
                tenant.change("PersistentVolumeClaim", &name, size).await;
            }
            Ok(())
        })
        .await
}

/// Changes of one claim and of one snapshot, as fast as the API server takes them.
pub(crate) async fn changes(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.bound("stormy", json!({})).await?;
    tenant.ready("stormy", "stormy").await?;
    tenant
        .each(count, |n| async move {
            let change = json!({"metadata": {"labels": {"storm": n.to_string()}}});
            for kind in ["PersistentVolumeClaim", "VolumeSnapshot"] {
                tenant.change(kind, "stormy", change.clone()).await;
            }
            Ok(())
        })
        .await
}
