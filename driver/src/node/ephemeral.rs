//! Inline ephemeral volumes. NodePublishVolume creates, formats and mounts them at the pod's path,
//! and NodeUnpublishVolume deletes them. Kubelet names them by its own handle, which the volume's
//! record maps to the ID. There is no other state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_proto::csi;

use super::Requested;
use super::inline_attributes::{attributes, choose_pool};
use super::stage::of_volume;
use super::unstage::foreign_mount;
use super::{Error, Node, Result, btrfs_devices, target_path};
use crate::controller::parameters::SettingsChange;
use crate::csi::capability::RequestedCapability;
use crate::csi::validate::invalid;
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::kernel::{self, MountEntry, mounts_read_only};
use crate::record::{POD_NAMESPACE, Parameters, namespace_of};
use crate::storage::{
    self, Access, Capability, Format, NewVolume, Reach, VolumeHandle, VolumeId, VolumeRecord,
};

/// The volume to create: thin, with the settings of a class without parameters. Its parameters have
/// the namespace of its pod, because earlier releases read that field.
fn new_volume(
    handle: &str,
    context: &Parameters,
    capability: &Capability,
    capacity_bytes: u64,
) -> Result<NewVolume> {
    let namespace = context.get_key_value(POD_NAMESPACE);
    Ok(NewVolume {
        name: handle.to_owned(),
        capacity_bytes,
        requested_bytes: None,
        capabilities: vec![capability.clone()],
        parameters: namespace
            .map(|(key, value)| (key.clone(), value.clone()))
            .into_iter()
            .collect(),
        mutable_parameters: BTreeMap::new(),
        settings: SettingsChange::default().create(None)?,
        mkfs_options: Vec::new(),
        source: None,
        inline: Some(handle.to_owned()),
        fault_disk: None,
        reach: Reach::Node,
    })
}

/// Checks that a volume at the target is as writable as requested.
fn same_readonly(state: &VolumeState, requested: &Requested) -> Result<()> {
    let read_only = requested.read_only || mounts_read_only(requested.capability.access.flags());
    match state.mount_at(&requested.path) {
        Some(entry) if entry.read_only() != read_only => Err(Error::AlreadyExists(
            "published at this path already, and readonly differs".to_owned(),
        )),
        _ => Ok(()),
    }
}

impl Node {
    pub(super) fn publish_inline(
        &self,
        req: &csi::NodePublishVolumeRequest,
        target: PathBuf,
        requested: RequestedCapability,
    ) -> Result<()> {
        let record = self.inline(req, &requested)?;
        let capability = of_volume(requested, &record)?;
        let requested = Requested {
            path: target,
            read_only: req.readonly || capability.mode.is_read_only(),
            capability,
        };
        let found = self
            .find_to_stage(&record, &requested)
            .inspect_err(|_| self.drop_unused(&record))?;
        same_readonly(&found.state, &requested)?;
        let made = target_path::make_directory(&requested.path)
            .inspect_err(|_| self.drop_unused(&record))?;
        let staged = self.stage_at(&record, &requested, found);
        staged.inspect_err(|error| {
            // It stays mounted until it answers.
            if btrfs_devices::is_unknown(error) {
                return;
            }
            self.drop_unused(&record);
            if made && let Err(error) = target_path::remove(&requested.path) {
                let path = requested.path.display();
                tracing::warn!(target_path = %path, %error, "cannot undo a failed publication");
            }
        })
    }

    /// Finds the volume of a request, or creates it.
    fn inline(
        &self,
        req: &csi::NodePublishVolumeRequest,
        requested: &RequestedCapability,
    ) -> Result<Arc<VolumeRecord>> {
        let capability = requested.plain();
        if !capability.access.flags().is_empty() {
            let why = "are for classes: an inline volume has none";
            return Err(invalid("volume_capability.mount.mount_flags", why).into());
        }
        let handle = VolumeHandle::Inline(req.volume_id.clone());
        match self.pools.volume(&handle) {
            Err(storage::Error::NoVolume(_)) => {}
            // A pool is missing; the code below reports it if the volume needs that pool.
            Err(storage::Error::Unavailable { .. }) => {}
            found => return Ok(found?),
        }
        let attributes = attributes(&req.volume_context)?;
        let Access::Mount { fs, .. } = &capability.access else {
            let why = "is a block device, which an inline volume can't be";
            return Err(invalid("volume_capability", why).into());
        };
        let open = self.pools.inline_pools();
        let pool = self
            .pools
            .named(Some(choose_pool(&open, attributes.pool.as_deref())?))?;
        let limits = &self.config.inline;
        let bytes = limits.size_of_new(attributes.size, *fs)?;
        let new = new_volume(&req.volume_id, &req.volume_context, capability, bytes)?;
        let namespace = namespace_of(&new.parameters);
        let _admitted = self
            .making
            .admit(limits, &req.volume_id, namespace, bytes, || {
                self.pools.inline_volumes()
            })?;
        Ok(self.pools.create_volume(&pool, new)?)
    }

    /// Deletes a volume after its first publication failed: kubelet may never call again for it. A
    /// volume that was published before contains a pod's data and waits for NodeUnpublishVolume.
    fn drop_unused(&self, record: &VolumeRecord) {
        let deleted = self
            .pools
            .volume(&VolumeHandle::Id(record.id))
            .and_then(|now| match (now.format, &now.stage) {
                (Format::Done(_), _) | (_, Some(_)) => Ok(()),
                _ => self.pools.delete_volume(&now.id),
            });
        if let Err(error) = deleted {
            tracing::warn!(volume = %record.id, %error, "a failed inline volume is left behind");
        }
    }

    pub(super) fn unpublish_inline(&self, id: &str, target: &Path) -> Result<()> {
        match self.pools.volume(&VolumeHandle::Inline(id.to_owned())) {
            // The volume is published at another target. Nothing is at this one, and the volume
            // stays.
            Ok(record) if record.stage.as_ref().is_some_and(|s| s.path != target) => {
                return self.nothing_at(target);
            }
            Ok(record) => {
                self.undo_stage(&record, target)?;
                match self.pools.delete_unstaged_volume(&record.id) {
                    // A pool without writes must not keep the pod. Recovery deletes inline volumes
                    // that are staged at a missing target.
                    Err(storage::Error::Kernel(error)) => {
                        tracing::warn!(volume = %record.id, %error, "an inline volume can't be deleted now");
                    }
                    deleted => deleted?,
                }
            }
            // An earlier call deleted it and was interrupted afterwards, or its record is damaged
            // and does not name it any more.
            Err(storage::Error::NoVolume(_)) => {
                if let Some(mount) = kernel::topmost_mount(self.pools.kernel(), target)? {
                    let unreadable = self.unreadable_on(&mount)?;
                    let identity = unreadable.ok_or_else(|| foreign_mount(target, &mount))?;
                    self.clear(&identity, target)?;
                }
            }
            Err(missing @ storage::Error::Unavailable { .. }) => {
                self.leave_missing(target, missing)?;
            }
            Err(other) => return Err(other.into()),
        }
        target_path::remove(target)
    }

    /// Unmounts what is at the target of an inline volume that no open pool has. An inline handle
    /// names no pool, so while any pool is missing, its record may be there. The loop device's path
    /// says which volume is mounted, and if that is one of a missing pool, recovery deletes it once
    /// the pool is back.
    fn leave_missing(&self, target: &Path, missing: storage::Error) -> Result<()> {
        let Some(mount) = kernel::topmost_mount(self.pools.kernel(), target)? else {
            return Ok(());
        };
        if let Some(id) = self.volume_on(&mount)?
            && let Err(storage::Error::Unavailable { .. }) = self.pools.with_id(id.pool())
        {
            return self
                .clear(&VolumeIdentity::unrecorded(id), target)
                .map(drop);
        }
        Err(missing.into())
    }

    /// The volume of a mount, if its record is unusable. Its data stays: without a record, nothing
    /// says that it is an inline volume.
    fn unreadable_on(&self, mount: &MountEntry) -> Result<Option<VolumeIdentity>> {
        let Some(id) = self.volume_on(mount)? else {
            return Ok(None);
        };
        Ok(match self.pools.volume(&VolumeHandle::Id(id)) {
            Err(storage::Error::Corrupt { .. }) => Some(self.pools.identity_without_record(id)),
            _ => None,
        })
    }

    /// The volume of a mount, by the path of its loop device's file.
    fn volume_on(&self, mount: &MountEntry) -> Result<Option<VolumeId>> {
        let Some(minor) = mount.loop_minor() else {
            return Ok(None);
        };
        let device = self.pools.kernel().loop_info(minor)?;
        Ok(device.and_then(|device| device.directory()?.parse().ok()))
    }
}

#[cfg(test)]
mod tests;
