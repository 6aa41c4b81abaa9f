//! Many copies of one volume with data.

use hostloop_test::front::fields::{is_ready_to_use, name, text};
use hostloop_test::front::objects::{Place, cloned, restored};
use serde_json::Value;

use crate::site::NOW;
use crate::tenant::Tenant;

/// The size of what is restored and cloned.
const COPIED: &str = "16Mi";
/// The size of what is snapshotted: much more than its data.
const PHOTOGRAPHED: &str = "64Mi";
const PHOTOGRAPHED_BYTES: u64 = 64 << 20;
/// How many snapshots are awaited beside other attacks, which slow them.
const AWAITED: usize = 8;
/// What a filesystem may take for an image beside its data.
const SLACK: u64 = 1 << 20;

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
    let awaited = if tenant.is_alone {
        taken.len()
    } else {
        AWAITED
    };
    for snapshot in taken.iter().take(awaited) {
        let ready = tenant
            .until("VolumeSnapshot", name(snapshot), "ready", is_ready_to_use)
            .await?;
        promises_its_data(tenant, &ready).await?;
    }
    let Some(before) = before else {
        return Ok(());
    };
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

/// A snapshot promises what its image has, which never grows, and not the size of its volume.
async fn promises_its_data(tenant: &Tenant<'_>, snapshot: &Value) -> Result<(), String> {
    let content = text(&snapshot["status"]["boundVolumeSnapshotContentName"]);
    let content = Place::of("VolumeSnapshotContent", "", content);
    let content = tenant.site.objects.get(&content).await.unwrap_or_default();
    let handle = text(&content["status"]["snapshotHandle"]);
    let (promised, has) = tenant.site.promised(handle)?;
    if has > promised + SLACK {
        return Err(format!("{handle} promises {promised} bytes, and has {has}"));
    }
    if promised > PHOTOGRAPHED_BYTES / 2 {
        return Err(format!(
            "{handle} promises {promised} bytes for 4 MiB of data in a volume of \
             {PHOTOGRAPHED_BYTES}"
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
