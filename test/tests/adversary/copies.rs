//! Many copies of one volume.

use hostloop_test::front::objects::{cloned, restored};
use serde_json::json;

use crate::tenant::Tenant;

pub(crate) async fn restores(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.bound("restored", json!({})).await?;
    tenant.ready("restored", "restored").await?;
    let restore = |n| tenant.now(&format!("restore-{n}"), restored("restored"));
    tenant.create_all((0..count).map(restore)).await.map(drop)
}

pub(crate) async fn snapshots(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.bound("photographed", json!({})).await?;
    let snapshot = |n| tenant.snapshot(&format!("photo-{n}"), "photographed");
    tenant.create_all((0..count).map(snapshot)).await.map(drop)
}

pub(crate) async fn clones(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.bound("cloned", json!({})).await?;
    let clone = |n| tenant.now(&format!("clone-{n}"), cloned("cloned"));
    tenant.create_all((0..count).map(clone)).await.map(drop)
}
