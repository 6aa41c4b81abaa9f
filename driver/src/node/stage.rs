//! NodeStageVolume: mounts the filesystem in an image, or attaches the image as a device.
//!
//! The record says "staged" with path and capability from before the first change until after the
//! last change of unstaging. The kernel shows how far the staging got. A recorded staging without
//! any trace in the kernel (the driver died, the node restarted) is a leftover, and a new staging
//! replaces it.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_proto::csi;

use super::attach_loop::{self, Purpose};
use super::mount_stage::MountStage;
use super::{Error, Node, Requested, Result, btrfs_devices, detach_loop, target_path};
use crate::csi::capability::{RequestedCapability, compatible};
use crate::csi::validate;
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::kernel::{self, file};
use crate::storage::{Access, Capability, Format, Stage, VolumeRecord};

/// The action of NodeStageVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageAction {
    /// Run all steps.
    Begin,
    /// The volume is mounted or attached; run the steps after that.
    Finish,
}

/// A volume to stage, as this call found it.
#[derive(Debug)]
pub(super) struct ToStage {
    image: File,
    /// What the kernel shows of it. The steps of the staging look no more, unless one of them
    /// failed or took long, or found that others changed it meanwhile.
    pub(super) state: VolumeState,
}

/// The kernel's state of a volume before its staging.
#[derive(Clone, Debug, Default)]
struct StateBefore {
    /// True if a loop device is attached to the image.
    attached: bool,
    /// The paths at which the filesystem is mounted.
    mounted_at: Vec<PathBuf>,
}

impl StateBefore {
    fn of(state: &VolumeState) -> StateBefore {
        StateBefore {
            attached: state.own().next().is_some(),
            mounted_at: state
                .mounts()
                .map(|e| e.mount_point.to_path_buf())
                .collect(),
        }
    }

    fn is_mounted_at(&self, path: &Path) -> bool {
        self.mounted_at.iter().any(|mounted| mounted == path)
    }

    /// True if the kernel shows what the record of a staging says.
    fn confirms(&self, stage: &Stage) -> bool {
        match stage.capability.access {
            Access::Block => self.attached,
            Access::Mount { .. } => self.is_mounted_at(&stage.path),
        }
    }
}

/// Decides by the recorded staging, as far as the kernel confirms it. Volume, path and capability
/// identify a repeated request, and `volume_context` does not. What is staged stays as it is if its
/// PV has other mount options since.
fn decide(
    stage: Option<&Stage>,
    before: &StateBefore,
    requested: &Requested,
) -> Result<StageAction> {
    if let Some(stage) = stage.filter(|stage| before.confirms(stage)) {
        if stage.path != requested.path {
            return Err(elsewhere(&stage.path));
        }
        if !compatible(&stage.capability, &requested.capability) {
            let why = "staged at this path already, for another use";
            return Err(Error::AlreadyExists(why.to_owned()));
        }
        return Ok(StageAction::Finish);
    }
    match (&requested.capability.access, before.mounted_at.first()) {
        (Access::Mount { .. }, Some(_)) if before.is_mounted_at(&requested.path) => {
            Ok(StageAction::Finish)
        }
        (_, Some(path)) => Err(elsewhere(path)),
        (_, None) => Ok(StageAction::Begin),
    }
}

/// The error for a volume that is staged or published at this path.
pub(super) fn elsewhere(path: &Path) -> Error {
    Error::FailedPrecondition(format!(
        "the volume is at {} already; unstage or unpublish it there first",
        path.display()
    ))
}

/// The capability for a volume. FAILED_PRECONDITION if the volume does not support it.
pub(super) fn of_volume(
    requested: RequestedCapability,
    record: &VolumeRecord,
) -> Result<Capability> {
    requested
        .of(record)
        .map_err(|why| Error::FailedPrecondition(format!("volume {}: {why}", record.id)))
}

/// Logs that the PV of a volume in use has other mount options since. The options may be secret.
pub(super) fn note_new_flags(record: &VolumeRecord, staged: &Capability, requested: &Capability) {
    if staged.access.flags() != requested.access.flags() {
        tracing::warn!(
            volume = %record.id,
            "the volume is mounted with other options than its PersistentVolume has now; all of \
             the new ones hold once no pod uses it on this node and it is staged again"
        );
    }
}

/// Maps a capability mismatch at this path to ALREADY_EXISTS. The specification has two codes for
/// that; this one is for a path where the volume already is.
pub(super) fn already(error: Error) -> Error {
    match error {
        Error::FailedPrecondition(why) => {
            Error::AlreadyExists(format!("at this path already, for another use: {why}"))
        }
        other => other,
    }
}

impl Node {
    /// NodeStageVolume: attaches the volume, formats it if it has no filesystem yet, and mounts it
    /// at the staging path. A block volume is only attached.
    pub fn node_stage_volume(
        &self,
        req: csi::NodeStageVolumeRequest,
    ) -> Result<csi::NodeStageVolumeResponse> {
        let id = validate::required("volume_id", &req.volume_id)?;
        let path = validate::path("staging_target_path", &req.staging_target_path)?;
        let requested = self.requested_capability(req.volume_capability.as_ref())?;
        let contexts = [&req.publish_context, &req.volume_context];
        if let Some(volume) = self.shared_volume(id, &contexts)? {
            self.stage_shared(volume, &path, &requested, &req.publish_context)?;
            return Ok(csi::NodeStageVolumeResponse {});
        }
        let record = self.volume(id)?;
        let path = target_path::place(&path)?;
        let capability = if record
            .stage
            .as_deref()
            .is_some_and(|stage| stage.path == path)
        {
            of_volume(requested, &record).map_err(already)?
        } else {
            of_volume(requested, &record)?
        };
        self.check_lifecycle(&record)?;
        let requested = Requested {
            path,
            capability,
            read_only: false,
        };
        let found = self.find_to_stage(&record, &requested)?;
        self.stage_at(&record, &requested, found)?;
        Ok(csi::NodeStageVolumeResponse {})
    }

    /// Reads the capability of a request.
    pub(super) fn requested_capability(
        &self,
        value: Option<&csi::VolumeCapability>,
    ) -> Result<RequestedCapability> {
        Ok(RequestedCapability::read(
            "volume_capability",
            value,
            &self.config.capabilities,
        )?)
    }

    /// Opens the image of a volume to stage, and looks at the kernel. Before that, it takes away
    /// what an interrupted copy left: a frozen filesystem, and a mount of earlier versions. It also
    /// ends the delays of a fault.
    pub(super) fn find_to_stage(
        &self,
        record: &VolumeRecord,
        requested: &Requested,
    ) -> Result<ToStage> {
        let (image, identity) = self.image(record)?;
        self.pools
            .unmount_scratch(record.id, kernel::file_id(&image)?)?;
        self.end_disk_delays(record);
        if requested.capability.access != Access::Block {
            self.thaw(record, &identity)?;
        }
        // The first update of a process syncs the record, and others have time to attach the image
        // meanwhile. So the look comes afterwards.
        self.pools.update_volume(&record.id, |_| {})?;
        let state = self.state(&identity, &[&requested.path])?;
        Ok(ToStage { image, state })
    }

    /// Stages a volume, or finishes an interrupted staging.
    pub(super) fn stage_at(
        &self,
        record: &VolumeRecord,
        requested: &Requested,
        found: ToStage,
    ) -> Result<()> {
        let ToStage { image, state } = found;
        self.check_fault_disk(record, &state)?;
        let before = StateBefore::of(&state);
        let action = decide(record.stage.as_deref(), &before, requested)?;
        if let (StageAction::Finish, Some(stage)) = (action, &record.stage) {
            note_new_flags(record, &stage.capability, &requested.capability);
        }
        let state = if action == StageAction::Begin {
            self.prepare(record, requested, &image, state)?
        } else {
            state
        };
        let blank = is_blank(&state, &image)?;
        let is_attached = state.own().next().is_some();
        let identity = state.identity().clone();
        let intended = self
            .intend(record, requested, action, blank, is_attached)
            .inspect_err(|_| self.take_format_back(record))?;
        let mkfs_began = Cell::new(false);
        let now = if intended.same_durable(record) {
            Ok(state)
        } else {
            // Others had time to attach the image while the record was written to disk.
            self.state(&identity, &[&requested.path])
        };
        now.map_err(Error::from)
            .and_then(|state| {
                let found = ToStage { image, state };
                let blank = blank && is_blank(&found.state, &found.image)?;
                let intended = self.still_intended(record, intended, blank)?;
                self.stage_intended(&intended, requested, action, &found, (blank, &mkfs_began))
            })
            .map_err(|error| {
                if !mkfs_began.get() {
                    self.take_format_back(record);
                }
                if action == StageAction::Begin && !btrfs_devices::is_unknown(&error) {
                    self.undo(record, &identity, requested);
                }
                if mkfs_began.get() {
                    self.take_format_back_if_blank(record, &identity, &requested.path);
                }
                self.explain_full(record, error)
            })
    }

    /// Checks what a new staging needs, and prepares its path and its image. The record has not
    /// changed yet, so a refusal has no effect.
    fn prepare(
        &self,
        record: &VolumeRecord,
        requested: &Requested,
        image: &File,
        state: VolumeState,
    ) -> Result<VolumeState> {
        if let Some(others) = self.unmount_wrong(&state)? {
            self.undo(record, state.identity(), requested);
            return Err(btrfs_devices::wrong(record.id, &others));
        }
        // An earlier staging may have mounted a btrfs that does not answer yet, here or elsewhere.
        let recorded = record.stage.as_ref().map(|stage| &stage.path);
        for path in recorded.into_iter().chain([&requested.path]) {
            btrfs_devices::refuse_unknown(self.pools.kernel(), &state, path)?;
        }
        if requested.capability.access == Access::Block {
            refuse_interrupted_growth(record)?;
        } else {
            self.refuse_foreign(&state, &requested.path)?;
            target_path::directory(&requested.path)?;
        }
        if self.pools.refill_thick(record, image)? {
            // Others had time to attach the image.
            return Ok(self.state(state.identity(), &[&requested.path])?);
        }
        Ok(state)
    }

    /// Runs the steps of a staging that change the kernel's state. The record contains the intent.
    fn stage_intended(
        &self,
        record: &VolumeRecord,
        requested: &Requested,
        action: StageAction,
        found: &ToStage,
        (blank, mkfs_began): (bool, &Cell<bool>),
    ) -> Result<()> {
        let ToStage { image, state } = found;
        let Access::Mount { fs, .. } = requested.capability.access else {
            return self.stage_block(record, image, state);
        };
        let mounting = MountStage {
            node: self,
            record,
            image,
            state,
            requested,
            fs,
            blank,
            mkfs_began,
        };
        match action {
            StageAction::Begin => mounting.begin(),
            StageAction::Finish => mounting.finish(),
        }
    }

    /// Records the intent to stage. A volume published as a device belongs to the user from now on
    /// and is never formatted. For an unformatted and certainly `blank` volume, the same write
    /// records the start of formatting.
    fn intend(
        &self,
        record: &VolumeRecord,
        requested: &Requested,
        action: StageAction,
        blank: bool,
        is_attached: bool,
    ) -> Result<Arc<VolumeRecord>> {
        let raw = requested.capability.access == Access::Block;
        // To finish, the capability does not count: it was mounted for that of the record.
        let known = record.stage.as_deref().filter(|stage| {
            stage.path == requested.path
                && (action == StageAction::Finish || stage.capability == requested.capability)
        });
        let mut stage = known.cloned().unwrap_or_else(|| Stage {
            path: requested.path.clone(),
            capability: requested.capability.clone(),
            minor: None,
            read_only_loops: Default::default(),
            disk: None,
        });
        if action == StageAction::Begin && !raw {
            stage.minor = None;
        }
        Ok(self.pools.update_volume(&record.id, |r| {
            r.stage = Some(Box::new(stage));
            r.fresh = false;
            if action == StageAction::Begin
                && let Some(fault) = &mut r.fault
            {
                fault.begin_staging(is_attached);
            }
            match (&requested.capability.access, r.format) {
                (Access::Block, _) => r.format = Format::Raw,
                (Access::Mount { fs, .. }, Format::None)
                    if action == StageAction::Begin && blank =>
                {
                    r.format = Format::Formatting(*fs);
                }
                _ => {}
            }
        })?)
    }

    /// Takes the start of formatting back if the image is not blank any more: others had time to
    /// write to it while the record was written to disk. Their data is not what an interrupted mkfs
    /// left, which the next one overwrites.
    fn still_intended(
        &self,
        before: &VolumeRecord,
        intended: Arc<VolumeRecord>,
        blank: bool,
    ) -> Result<Arc<VolumeRecord>> {
        if blank || !intended.format.is_begun() || intended.format == before.format {
            return Ok(intended);
        }
        Ok(self
            .pools
            .update_volume(&before.id, |r| r.format = before.format)?)
    }

    /// Takes the start of formatting back after an error before mkfs. Others may write to the image
    /// until the next call, and only what an interrupted mkfs has left may be overwritten then.
    fn take_format_back(&self, before: &VolumeRecord) {
        if before.format == Format::None {
            self.clear_formatting(before);
        }
    }

    /// Takes the start of formatting back if mkfs has left nothing.
    pub(super) fn take_format_back_if_blank(
        &self,
        before: &VolumeRecord,
        identity: &VolumeIdentity,
        path: &Path,
    ) {
        match self.is_blank_now(before, identity, path) {
            Ok(true) => self.clear_formatting(before),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(volume = %before.id, %error, "can't find out what mkfs has left")
            }
        }
    }

    fn is_blank_now(
        &self,
        record: &VolumeRecord,
        identity: &VolumeIdentity,
        path: &Path,
    ) -> Result<bool> {
        // Before the image: a device that detaches writes its cache to it, and so does a fault disk
        // that ends.
        let state = self.state(identity, &[path])?;
        if state.own().next().is_none() {
            self.end_fault_disk(record)?;
        }
        is_blank(&state, &self.pools.open_image(record, false)?)
    }

    fn clear_formatting(&self, record: &VolumeRecord) {
        let cleared = self
            .pools
            .clear_in_volume(&record.id, |r| r.format.take_back());
        if let Err(error) = cleared {
            tracing::warn!(
                volume = %record.id, %error,
                "can't take the start of mkfs back: the record still says that it has begun"
            );
        }
    }

    /// Attaches a block volume. Targets may still be bound to the node of a lost device, and need a
    /// device with the same minor.
    fn stage_block(&self, record: &VolumeRecord, image: &File, state: &VolumeState) -> Result<()> {
        let recorded = record.stage.as_ref().and_then(|s| s.minor);
        let bound = recorded.filter(|minor| state.kernel().is_bound(*minor));
        let attached = attach_loop::attach(self, record, image, state, Purpose::Block, bound);
        if let (Err(Error::Kernel(kernel::Error::Busy { .. })), Some(minor)) = (&attached, bound) {
            return Err(Error::FailedPrecondition(format!(
                "targets of volume {} are bound to /dev/loop{minor}, which has another image now: \
                 unpublish them",
                record.id
            )));
        }
        self.staged(record, attached?.minor)
    }

    /// Records that the staging is complete. NodePublishVolume requires this. A filesystem that was
    /// mounted from the bytes of a block device is known from now on, and so are its copies.
    pub(super) fn staged(&self, record: &VolumeRecord, minor: u32) -> Result<()> {
        self.unknown_mounts.forget(record.id);
        self.pools.update_volume(&record.id, |r| {
            let mut mounted = None;
            if let Some(stage) = &mut r.stage {
                stage.minor = Some(minor);
                mounted = stage.capability.access.fs();
            }
            match (r.format, mounted) {
                (Format::Formatting(fs), _) | (Format::Raw, Some(fs)) => {
                    r.format = Format::Done(fs);
                }
                _ => {}
            }
        })?;
        Ok(())
    }

    /// Undoes a failed staging. Removes the intent too if nothing is left; the next call starts
    /// from the kernel's state. An earlier record of a block volume stays: it identifies the
    /// targets that are bound to a lost device.
    fn undo(&self, record: &VolumeRecord, identity: &VolumeIdentity, requested: &Requested) {
        let stage = record.stage.clone();
        let stage = stage.filter(|stage| stage.capability.access == Access::Block);
        let released = self.release(identity, &requested.path);
        let undone = released.and_then(|left| {
            detach_loop::still_held(&left)?;
            self.end_fault_disk(record)?;
            self.unknown_mounts.forget_at(record.id, &requested.path);
            Ok(self
                .pools
                .clear_in_volume(&record.id, |r| r.stage = stage)?)
        });
        if let Err(error) = undone {
            tracing::warn!(volume = %record.id, %error, "a failed staging is not completely undone");
        }
    }
}

/// True if an image certainly has no data. The file does not show data in the cache of an attached
/// device.
fn is_blank(state: &VolumeState, image: &File) -> Result<bool> {
    Ok(state.own().next().is_none() && !file::has_data(image)?)
}

/// A user of the device could change the filesystem before the growth is mended.
fn refuse_interrupted_growth(record: &VolumeRecord) -> Result<()> {
    if record.growth.is_none() {
        return Ok(());
    }
    Err(Error::FailedPrecondition(format!(
        "the growth of the filesystem of volume {} was interrupted: stage it as a filesystem, which \
         completes the growth, before it is staged as a device",
        record.id
    )))
}

#[cfg(test)]
mod tests;
