//! Why an attachment does not go on.

use k8s_openapi::api::storage::v1::VolumeAttachment;

use crate::verdict::{Stuck, is_overdue};
use crate::volume_objects::ns;

/// Why an attachment does not go on. `None` if it does.
pub(crate) fn attachment_stuck(attachment: &VolumeAttachment, now_ns: u64) -> Option<Stuck> {
    let status = attachment.status.as_ref();
    let node = &attachment.spec.node_name;
    let attached = status.is_some_and(|status| status.attached);
    let attach_error = status.and_then(|status| status.attach_error.as_ref());
    let detach_error = status.and_then(|status| status.detach_error.as_ref());
    let (what, error) = match (attach_error, detach_error) {
        (Some(error), _) if !attached => ("attaching to", error),
        (_, Some(error)) => ("detaching from", error),
        _ => return attachment_overdue(attachment, attached, now_ns),
    };
    let message = error.message.as_deref().unwrap_or("no reason is given");
    let why = format!("{what} node {node}: {message}");
    Some(Stuck {
        why,
        since_ns: error.time.as_ref().map(ns),
    })
}

fn attachment_overdue(attachment: &VolumeAttachment, attached: bool, now_ns: u64) -> Option<Stuck> {
    let meta = &attachment.metadata;
    let (what, since) = match (&meta.deletion_timestamp, &meta.creation_timestamp) {
        (Some(deleted), _) => ("detaching from", ns(deleted)),
        (None, Some(created)) if !attached => ("attaching to", ns(created)),
        _ => return None,
    };
    let node = &attachment.spec.node_name;
    let why = format!("{what} node {node}, and no error says why; see the log of hostloop's pods");
    is_overdue(Some(since), now_ns).then(|| Stuck::new(why, Some(since)))
}
