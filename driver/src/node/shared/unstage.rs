//! NodeUnstageVolume of a shared volume: unmounts it, and gives the pin back. The volume's device
//! stays: its owner detaches it.

use std::path::{Path, PathBuf};

use crate::diagnose::VolumeIdentity;
use crate::node::unstage::published;
use crate::node::{Node, Result, target_path};
use crate::storage::VolumeId;

impl Node {
    /// Goes by the kernel alone, on the owner too.
    pub(in crate::node) fn unstage_shared(&self, volume: VolumeId, path: &Path) -> Result<()> {
        let anchors = self.anchors()?;
        if path == self.anchor_path(volume)? {
            return Err(target_path::wrong(
                path,
                "is where the volume's owner has staged it",
            ));
        }
        let state = self.state(&VolumeIdentity::unrecorded(volume), &[path])?;
        self.refuse_foreign(&state, path)?;
        let mut other: Vec<PathBuf> = if state.mounts().next().is_some() {
            let mounts = state.mounts();
            mounts
                .map(|mount| mount.mount_point.to_path_buf())
                .collect()
        } else {
            state.bound()
        };
        other.retain(|at| at != path && !at.starts_with(&anchors));
        if !other.is_empty() {
            return Err(published(volume, &other));
        }
        self.unmount_seen(&state, path)?;
        self.drop_pins(&state.own().map(|device| device.minor).collect())
    }
}
