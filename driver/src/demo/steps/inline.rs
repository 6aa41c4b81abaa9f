//! A volume that is part of a pod.

use hostloop_proto::csi;

use crate::demo::error::Result;
use crate::demo::orchestrator::{Want, with_pod};
use crate::demo::pod;
use crate::demo::tree::inline_handle;
use crate::demo::world::World;

/// Publishes an inline volume, uses it, and unpublishes it.
pub(super) fn inline(w: &mut World) -> Result<()> {
    let before = w.see()?;
    let pod_uid = uuid::Uuid::new_v4().to_string();
    let handle = inline_handle(&pod_uid, "scratch");
    let path = w.tree.target(&pod_uid, "scratch");
    let mut context = with_pod(&Default::default(), &pod_uid, true);
    // The default of --max-inline-size.
    let size = w.setup.bytes.min(1 << 30);
    context.insert("size".to_owned(), size.to_string());
    let request = csi::NodePublishVolumeRequest {
        volume_id: handle.clone(),
        target_path: path.display().to_string(),
        volume_capability: Some(w.capability(&Want::default())),
        volume_context: context,
        ..csi::NodePublishVolumeRequest::default()
    };
    w.publish_to(format!("scratch to pod {pod_uid}"), request)?;
    name_it(w, &handle)?;
    let digest = pod::write_random(&path.join("file"), 0, 1 << 20)?;
    pod::sync(&path)?;
    w.look()?;
    let same = pod::checksum(&path.join("file"), None)? == digest;
    w.narrator.check("the pod writes and reads", same);
    w.unpublish_from(format!("scratch from pod {pod_uid}"), &handle, &path)?;
    w.look()?;
    // Only the pool's own free space may have moved a little.
    let things = |c: &crate::demo::picture::Change| c.before.is_none() || c.now.is_none();
    let left = w.see()?.since(&before).iter().filter(|c| things(c)).count();
    w.narrator.check("nothing of it is left", left == 0);
    Ok(())
}

/// The driver has given it an ID of its own.
fn name_it(w: &mut World, handle: &str) -> Result<()> {
    let survey = w.survey()?;
    let volumes = survey.contents().flat_map(|(_, c)| &c.volumes);
    for volume in volumes.filter_map(|item| item.record.as_ref().ok()) {
        if volume.inline.as_deref() == Some(handle) {
            w.aliases
                .insert(volume.id.to_string(), "scratch".to_owned());
        }
    }
    Ok(())
}
