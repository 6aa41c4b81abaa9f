//! NodePublishVolume: binds a staged volume to a pod's path. The kernel shows where it is already.

use std::collections::BTreeMap;
use std::path::Path;

use hostloop_proto::csi;

use super::Requested;
use super::publish_decision::{self, NodePublish, Published};
use super::stage::{already, note_new_flags, of_volume};
use super::{Error, Node, Result, btrfs_devices, fs_group, target_path};
use crate::csi::validate;
use crate::diagnose::{MountedObject, VolumeState};
use crate::kernel::{self, BindFlags, Kernel, LoopDevice, LoopInfo};
use crate::storage::{Access, Stage, VolumeHandle, VolumeId, VolumeRecord};

/// Kubelet's key for an inline volume, in `volume_context` (with podInfoOnMount).
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// True for an inline volume. Kubelet's volume handle shows that, even without podInfoOnMount.
fn is_inline(volume_id: &str, context: &BTreeMap<String, String>) -> Result<bool> {
    let inline = matches!(volume_id.parse(), Ok(VolumeHandle::Inline(_)));
    if context.get(EPHEMERAL).is_some_and(|v| v == "true") && !inline {
        let why = "is not a handle of an inline volume (\"csi-\" and 64 hex digits)";
        return Err(validate::invalid("volume_id", why).into());
    }
    Ok(inline)
}

/// The staging that a publication needs.
///
/// Several PVs can name one block volume. Kubelet stages it under the name of one PV and publishes
/// it under the name of each, with nothing at these staging paths. So a sibling of the staging path
/// is accepted for a block volume.
fn staging<'a>(record: &'a VolumeRecord, path: &Path) -> Result<&'a Stage> {
    let Some(stage) = &record.stage else {
        return Err(not_staged(record, path, ""));
    };
    if stage.minor.is_none() {
        return Err(not_staged(record, path, " yet"));
    }
    let sibling = stage.capability.access == Access::Block && stage.path.parent() == path.parent();
    if stage.path == path || sibling {
        Ok(stage)
    } else {
        let but = format!(", but at {}", stage.path.display());
        Err(not_staged(record, path, &but))
    }
}

fn not_staged(record: &VolumeRecord, path: &Path, but: &str) -> Error {
    Error::FailedPrecondition(format!(
        "volume {} is not staged at {}{but}: NodeStageVolume comes first",
        record.id,
        path.display()
    ))
}

/// The error for a filesystem that is staged, and mounted there no more.
pub(super) fn unmounted(id: VolumeId, staged_at: &Path) -> Error {
    Error::FailedPrecondition(format!(
        "volume {id} is not mounted at {} any more: stage it again",
        staged_at.display()
    ))
}

/// The error for a block volume without its device.
fn lost(record: &VolumeRecord) -> Error {
    Error::FailedPrecondition(format!(
        "volume {} has lost its loop device: stage it again",
        record.id
    ))
}

/// Opens a volume's device again, unless another file is behind it now.
pub(super) fn reopen(
    kernel: &dyn Kernel,
    record: &VolumeRecord,
    own: &LoopInfo,
) -> Result<LoopDevice> {
    match kernel.loop_reopen(own) {
        Err(kernel::Error::NotFound { .. }) => Err(lost(record)),
        opened => Ok(opened?),
    }
}

impl Node {
    /// NodePublishVolume: binds a staged volume to the target, or creates and mounts an inline
    /// volume.
    pub fn node_publish_volume(
        &self,
        req: csi::NodePublishVolumeRequest,
    ) -> Result<csi::NodePublishVolumeResponse> {
        let id = validate::required("volume_id", &req.volume_id)?;
        let target = validate::path("target_path", &req.target_path)?;
        let requested = self.requested_capability(req.volume_capability.as_ref())?;
        let target = target_path::place(&target)?;
        if is_inline(id, &req.volume_context)? {
            self.publish_inline(&req, target, requested)?;
            return Ok(csi::NodePublishVolumeResponse {});
        }
        if req.staging_target_path.is_empty() {
            return Err(Error::FailedPrecondition(
                "staging_target_path is required: NodeStageVolume comes first".to_owned(),
            ));
        }
        let staged_at = validate::path("staging_target_path", &req.staging_target_path)?;
        let contexts = [&req.publish_context, &req.volume_context];
        if let Some(volume) = self.shared_volume(id, &contexts)? {
            self.publish_shared(volume, &req, (staged_at.as_path(), target), &requested)?;
            return Ok(csi::NodePublishVolumeResponse {});
        }
        let record = self.volume(id)?;
        let capability = match of_volume(requested, &record) {
            Err(error) if self.is_at(&record, &target)? => return Err(already(error)),
            capability => capability?,
        };
        self.check_lifecycle(&record)?;
        let stage = staging(&record, &target_path::place(&staged_at)?)?;
        if target == stage.path {
            return Err(target_path::wrong(&target, "is where the volume is staged"));
        }
        let publication = record.publications.get(&self.config.node_id);
        let readonly = req.readonly
            || capability.mode.is_read_only()
            || publication.is_some_and(|p| p.readonly);
        note_new_flags(&record, &stage.capability, &capability);
        let requested = Requested {
            path: target,
            read_only: readonly,
            capability,
        };
        let done = match &requested.capability.access {
            Access::Block => self.publish_block(&record, stage, &requested),
            Access::Mount { .. } => self.publish_mount(&record, stage, &requested),
        };
        done.map(|()| csi::NodePublishVolumeResponse {})
            .map_err(|error| self.explain_full(&record, error))
    }

    fn is_at(&self, record: &VolumeRecord, target: &Path) -> Result<bool> {
        let state = self.state(&self.identity(record), &[target])?;
        btrfs_devices::refuse_unknown(self.pools.kernel(), &state, target)?;
        let found = state.at(target);
        Ok(matches!(
            found,
            MountedObject::Filesystem { .. } | MountedObject::Device { .. }
        ))
    }

    /// Decides what to do, given what is at the target and elsewhere.
    fn publish_decision(
        &self,
        state: &VolumeState,
        stage: &Stage,
        requested: &Requested,
    ) -> Result<NodePublish> {
        let here = self.published_at(state, &requested.path)?;
        let targets = state.targets(stage);
        let published = Published {
            here,
            elsewhere: targets.iter().any(|path| *path != requested.path),
        };
        publish_decision::decide(
            &stage.capability,
            &requested.capability,
            requested.read_only,
            published,
        )
    }

    /// How the volume is at a target: true if read-only, and `None` if nothing is there.
    pub(super) fn published_at(&self, state: &VolumeState, target: &Path) -> Result<Option<bool>> {
        match state.at(target) {
            MountedObject::Nothing => Ok(None),
            MountedObject::Filesystem { read_only, .. }
            | MountedObject::Device { read_only, .. } => Ok(Some(read_only)),
            MountedObject::Stale => {
                let why = "a loop device that is gone is bound here; unpublish it first";
                Err(target_path::wrong(target, why))
            }
            MountedObject::Foreign(what) => Err(self.foreign(state, target, &what)),
        }
    }

    fn publish_mount(
        &self,
        record: &VolumeRecord,
        stage: &Stage,
        requested: &Requested,
    ) -> Result<()> {
        let kernel = self.pools.kernel();
        let state = self.state(&self.identity(record), &[&requested.path, &stage.path])?;
        let decided = self.publish_decision(&state, stage, requested)?;
        if state.mount_at(&stage.path).is_none() {
            btrfs_devices::refuse_unknown(kernel, &state, &stage.path)?;
            return Err(unmounted(record.id, &stage.path));
        }
        let read_only = self.bind_staged(stage, requested, decided, |made| {
            self.give_up(record, &requested.path, made);
        })?;
        match &requested.capability.access {
            Access::Mount {
                group: Some(gid), ..
            } if !read_only => {
                // A fault may have frozen it: this call would wait, and its volume with it.
                if record.freeze.is_some() {
                    self.thaw(record, &self.identity(record))?;
                }
                fs_group::chown_root(&requested.path, *gid)
            }
            _ => Ok(()),
        }
    }

    /// Binds the filesystem that is staged to the target, unless it is there. True if it is read-only
    /// there. `undo` is called if the bind fails, with true if this call made the directory.
    pub(super) fn bind_staged(
        &self,
        stage: &Stage,
        requested: &Requested,
        decided: NodePublish,
        undo: impl FnOnce(bool),
    ) -> Result<bool> {
        let read_only = publish_decision::read_only(
            &stage.capability,
            &requested.capability,
            requested.read_only,
        );
        if decided == NodePublish::Bind {
            let made = target_path::make_directory(&requested.path)?;
            let flags = BindFlags::of(requested.capability.access.flags(), read_only);
            let kernel = self.pools.kernel();
            kernel
                .bind(&stage.path, &requested.path, flags)
                .inspect_err(|_| undo(made))?;
        }
        Ok(read_only)
    }

    fn publish_block(
        &self,
        record: &VolumeRecord,
        stage: &Stage,
        requested: &Requested,
    ) -> Result<()> {
        let kernel = self.pools.kernel();
        let state = self.state(&self.identity(record), &[&requested.path])?;
        let decided = self.publish_decision(&state, stage, requested)?;
        let Some(own) = state.own().next() else {
            return Err(lost(record));
        };
        if decided == NodePublish::Done {
            return Ok(());
        }
        if let Some(why) = own.tampered_beside(record.own_limit()) {
            return Err(Error::FailedPrecondition(format!(
                "/dev/loop{} was changed by one of its users: {why}; unpublish and unstage \
                 volume {} first",
                own.minor, record.id
            )));
        }
        let made = target_path::make_file(&requested.path)?;
        // Another program could detach the device and take its number before the bind. It can't
        // while this process has the device open.
        let held = if requested.read_only {
            // A read-only bind of a device node would still take writes.
            self.read_only_device(record, &state, own, &requested.path)
        } else {
            reopen(kernel, record, own)
        };
        let bound = held.and_then(|device| {
            let flags = BindFlags {
                read_only: requested.read_only,
                ..BindFlags::default()
            };
            Ok(kernel.bind(&device.path(), &requested.path, flags)?)
        });
        bound.inspect_err(|_| self.give_up(record, &requested.path, made))
    }

    /// Undoes a failed publication at its target.
    fn give_up(&self, record: &VolumeRecord, target: &Path, made: bool) {
        if let Err(error) = self.take_back(record.id, target, made) {
            tracing::warn!(
                target_path = %target.display(), %error,
                "cannot undo a failed publication"
            );
        }
    }

    /// Unpublishes a volume at a target. While a bind is still there, its read-only device stays
    /// attached: otherwise the bind would show the next device with that minor.
    fn take_back(&self, volume: VolumeId, target: &Path, made: bool) -> Result<()> {
        // The current record contains the read-only device of this publication.
        let record = self.pools.volume(&VolumeHandle::Id(volume))?;
        let cleared = self.clear(&self.identity(&record), target)?;
        self.drop_read_only(&record, &cleared.state, target)?;
        if made {
            target_path::remove(target)
        } else {
            Ok(())
        }
    }
}
