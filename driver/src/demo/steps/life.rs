//! From nothing to a directory in a pod.

use std::collections::BTreeMap;

use hostloop_proto::csi::controller_client::ControllerClient;

use crate::status::units::bytes;
use crate::survey::Uses;
use crate::sys::FsType;

use crate::demo::error::Result;
use crate::demo::orchestrator::Want;
use crate::demo::world::World;

/// Makes the first volume, and asks for it a second time.
pub(super) fn create(w: &mut World) -> Result<()> {
    let fs = w.setup.fs;
    let request = w.create(
        "data",
        &Want {
            bytes: w.setup.bytes,
            // Switched on later, to see what comes of it, where that can be done.
            parameters: match fs {
                FsType::Xfs => BTreeMap::new(),
                FsType::Ext4 | FsType::Btrfs => [("discard".into(), "false".into())].into(),
            },
            ..Want::default()
        },
    )?;
    let again = w.call("CreateVolume", "data, once more", async |channel| {
        ControllerClient::new(channel).create_volume(request).await
    })?;
    let volume = w.volume("data")?;
    let (id, size) = (volume.id.clone(), volume.bytes);
    w.narrator.fact("volume", format!("{id}, to be {fs}"));
    let same = again.volume.is_some_and(|v| v.volume_id == id);
    w.look()?;
    w.narrator
        .check("the second answer is the same volume", same);
    let enough = size >= w.setup.bytes;
    w.narrator
        .check(format!("it has at least {}", bytes(w.setup.bytes)), enough);
    let taken = allocated(w, &id)?;
    let little = taken.is_some_and(|n| n <= size / 100);
    let text = taken.map_or("nothing".to_owned(), bytes);
    w.narrator.check(
        format!("it is thin: {text} of {} on disk", bytes(size)),
        little,
    );
    Ok(())
}

/// What a volume's image takes on the disk.
pub(super) fn allocated(w: &World, id: &str) -> Result<Option<u64>> {
    let survey = w.survey()?;
    let mut volumes = survey.contents().flat_map(|(_, c)| &c.volumes);
    let item = volumes.find(|item| item.name == id);
    Ok(item
        .and_then(|item| item.image)
        .map(|image| image.allocated))
}

/// Publishes it to the node.
pub(super) fn attach(w: &mut World) -> Result<()> {
    w.attach("data")?;
    w.look()
}

/// Stages it, and looks at the loop device.
pub(super) fn stage(w: &mut World) -> Result<()> {
    w.stage("data")?;
    w.look()?;
    let id = w.volume("data")?.id.clone();
    let survey = w.survey()?;
    let uses = Uses::of(&survey);
    let loops = uses.over_volume(&id);
    w.narrator
        .check("it is on exactly one loop device", loops.len() == 1);
    if let Some(first) = loops.first() {
        let device = &first.device;
        w.narrator
            .check("its blocks are of 4096 bytes", device.block_size == 4096);
        w.narrator.check("direct I/O is in force", device.direct_io);
    }
    Ok(())
}

/// Publishes it to a pod.
pub(super) fn publish(w: &mut World) -> Result<()> {
    let (_, target) = w.publish("data", false)?;
    w.look()?;
    let mounts = w.kernel.mounts()?;
    let mounted = mounts.at(&target).is_some_and(|m| !m.read_only());
    w.narrator
        .check("the pod's directory is the volume, writable", mounted);
    Ok(())
}
