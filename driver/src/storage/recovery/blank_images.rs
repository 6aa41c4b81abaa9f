//! Takes back starts of formatting that wrote nothing.
//!
//! The record of a volume says `Formatting` from before its image is attached. A process that died
//! before its mkfs began leaves that with a blank image. What others write to the image later is
//! not what an interrupted mkfs left, and the next staging would format over it.

use super::VolumeImage;
use crate::kernel::{Kernel, file, loops_holding};
use crate::storage::file_names::EntryKind;
use crate::storage::{Pool, Result};

/// Takes the start of formatting back in the records of volumes that certainly have no data. Data
/// that comes after this look is not formatted over either: the next staging refuses it.
pub(super) fn take_formats_back(pool: &Pool, kernel: &dyn Kernel, images: &[VolumeImage]) {
    // A fault disk may still write what an mkfs has left. The next staging waits for that.
    let begun = images
        .iter()
        .filter(|found| found.volume.format.is_begun() && found.volume.fault_disk.is_none());
    for found in begun {
        if let Err(error) = take_format_back_if_blank(pool, kernel, found) {
            let id = found.volume.id;
            tracing::warn!(
                volume = %id, %error,
                "can't take the start of mkfs back: the record still says that it has begun"
            );
        }
    }
}

fn take_format_back_if_blank(pool: &Pool, kernel: &dyn Kernel, found: &VolumeImage) -> Result<()> {
    if !is_blank(pool, kernel, found)? {
        return Ok(());
    }
    let id = found.volume.id;
    pool.clear(&id, |record| record.format.take_back())?;
    tracing::info!(volume = %id, "took back the start of an mkfs that wrote nothing");
    Ok(())
}

/// True if an image certainly has no data. The file does not show data in the cache of an attached
/// device, and an mkfs that outlived its process may still write to that.
fn is_blank(pool: &Pool, kernel: &dyn Kernel, found: &VolumeImage) -> Result<bool> {
    let entry = found.volume.id.to_string();
    if !loops_holding(kernel, found.image.file, &entry)?.is_empty() {
        return Ok(false);
    }
    let image = pool.layout.open_image(EntryKind::Volumes, &entry, false)?;
    Ok(!file::has_data(&image)?)
}
