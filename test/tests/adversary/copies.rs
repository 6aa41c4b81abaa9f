//! Many copies of one volume with data.

use hostloop_test::front::objects::{cloned, restored};

use crate::tenant::Tenant;

pub(crate) async fn restores(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.filled("restored").await?;
    tenant.ready("restored", "restored").await?;
    let restore = |n| tenant.copy(&format!("restore-{n}"), restored("restored"));
    tenant.create_all((0..count).map(restore)).await.map(drop)
}

pub(crate) async fn snapshots(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.filled("photographed").await?;
    let snapshot = |n| tenant.snapshot(&format!("photo-{n}"), "photographed");
    tenant.create_all((0..count).map(snapshot)).await.map(drop)
}

pub(crate) async fn clones(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.filled("cloned").await?;
    let clone = |n| tenant.copy(&format!("clone-{n}"), cloned("cloned"));
    tenant.create_all((0..count).map(clone)).await.map(drop)
}
