//! A raw block device.

use crate::status::units::{bytes, shorten};

use crate::demo::error::Result;
use crate::demo::orchestrator::Want;
use crate::demo::pod;
use crate::demo::world::World;

use super::life::allocated;

/// Makes a thick block volume, uses it from one pod, and reads it from another.
pub(super) fn block(w: &mut World) -> Result<()> {
    let len = (w.setup.bytes / 8).next_multiple_of(1 << 20);
    let want = Want {
        bytes: len,
        block: true,
        many_pods: true,
        parameters: [("provisioning".to_owned(), "thick".to_owned())].into(),
        note: ", block, thick",
        ..Want::default()
    };
    w.create("disk", &want)?;
    let (id, size) = (w.volume("disk")?.id.clone(), w.volume("disk")?.bytes);
    let taken = allocated(w, &id)?.unwrap_or_default();
    w.narrator.check(
        format!("all of {} is taken on the disk", bytes(size)),
        taken >= size,
    );
    w.attach("disk")?;
    w.stage("disk")?;
    let (_, device) = w.publish("disk", false)?;
    let digest = pod::write_random(&device, 0, len)?;
    w.narrator.fact(
        "wrote",
        format!("all {} of it, sha256 {}", bytes(len), shorten(&digest)),
    );
    let (reader, second) = w.publish("disk", true)?;
    w.look()?;
    w.narrator.check(
        "the device has the volume's size",
        pod::size(&device)? == size,
    );
    let same = pod::checksum(&device, Some(len))? == digest;
    w.narrator.check("it reads back as it was written", same);
    let same = pod::checksum(&second, Some(len))? == digest;
    w.narrator.check("the second pod reads the same", same);
    let refused = pod::try_to_write(&second);
    if let Err(e) = &refused {
        w.narrator.fact("write", format!("by the second pod: {e}"));
    }
    w.narrator
        .check("the second pod can't write", refused.is_err());
    let same = pod::checksum(&device, Some(len))? == digest;
    w.narrator.check("and nothing has changed", same);
    w.unpublish("disk", &reader)?;
    w.look()
}
