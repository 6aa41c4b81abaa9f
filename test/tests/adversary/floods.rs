//! Many ordinary objects, and the same objects again and again.

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
