//! Many copies of one volume with data.

use hostloop_test::front::fields::{is_ready_to_use, name};
use hostloop_test::front::objects::{cloned, restored};

use crate::site::NOW;
use crate::tenant::Tenant;

/// The size of what is restored and cloned.
const COPIED: &str = "16Mi";
/// The size of what is snapshotted: much more than its data.
const PHOTOGRAPHED: &str = "64Mi";
const PHOTOGRAPHED_BYTES: u64 = 64 << 20;

pub(crate) async fn restores(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.filled("restored", COPIED).await?;
    tenant.ready("restored", "restored").await?;
    let copies = (0..count).map(|n| {
        let name = format!("restore-{n}");
        tenant.claim(&name, NOW, COPIED, restored("restored"))
    });
    tenant.create_all(copies).await.map(drop)
}

/// Snapshots promise what they can come to hold, the data of the volume, and not its size.
pub(crate) async fn snapshots(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.filled("photographed", PHOTOGRAPHED).await?;
    // Other attacks take room, and connections for metrics.
    let before = if tenant.is_alone {
        Some(tenant.site.available_bytes().await?)
    } else {
        None
    };
    let snapshots = (0..count).map(|n| tenant.snapshot(&format!("photo-{n}"), "photographed"));
    let taken = tenant.create_all(snapshots).await?;
    let Some(before) = before else {
        return Ok(());
    };
    for snapshot in &taken {
        tenant
            .until("VolumeSnapshot", name(snapshot), "ready", is_ready_to_use)
            .await?;
    }
    let after = tenant.site.available_bytes().await?;
    let (promised, whole) = (
        before.saturating_sub(after),
        taken.len() as u64 * PHOTOGRAPHED_BYTES,
    );
    if promised > whole / 2 {
        return Err(format!(
            "{} snapshots with 4 MiB of data took {promised} bytes of the pool's room, and the \
             sizes of their volumes are {whole}",
            taken.len()
        ));
    }
    Ok(())
}

pub(crate) async fn clones(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    tenant.filled("cloned", COPIED).await?;
    let copies = (0..count).map(|n| {
        let name = format!("clone-{n}");
        tenant.claim(&name, NOW, COPIED, cloned("cloned"))
    });
    tenant.create_all(copies).await.map(drop)
}
