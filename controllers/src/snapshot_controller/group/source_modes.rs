//! The volume modes of a group's sources. The content of a group has no field for them, and the
//! volumes may be gone when the contents of its members are made, which need them. So an annotation
//! keeps them from the time when the group's content is made.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::SourceVolume;
use crate::api::volume_mode;
use crate::snapshots::VolumeGroupSnapshotContent;
use crate::snapshots::content::BLOCK_VOLUMES;

/// Notes the modes of these volumes at the content that is made of them.
pub(super) fn note(content: &mut ObjectMeta, volumes: &[&SourceVolume]) {
    let blocks = volumes.iter().filter(|volume| volume.is_block);
    let handles = blocks.map(|volume| volume.handle.as_str());
    let handles = serde_json::Value::from_iter(handles);
    let annotations = content.annotations.get_or_insert_with(BTreeMap::new);
    annotations.insert(BLOCK_VOLUMES.to_owned(), handles.to_string());
}

/// The mode of a source when the group's content was made of it, if that is known.
pub(super) fn of(content: &VolumeGroupSnapshotContent, handle: &str) -> Option<&'static str> {
    let sources = content.spec.source.volume_handles.as_ref()?;
    let noted = content.annotations().get(BLOCK_VOLUMES)?;
    let blocks: Vec<String> = serde_json::from_str(noted).ok()?;
    if !sources.iter().any(|source| source == handle) {
        return None;
    }
    let is_block = blocks.iter().any(|block| block == handle);
    Some(if is_block {
        volume_mode::BLOCK
    } else {
        volume_mode::FILESYSTEM
    })
}
