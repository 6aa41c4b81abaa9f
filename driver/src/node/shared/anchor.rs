//! What the owner of a shared volume does while it is published: it stages the volume for all nodes.

use std::collections::BTreeSet;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use super::Devices;
use crate::controller::Anchors;
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::kernel::{self, file_id, loop_path, loops_holding};
use crate::node::volume_lookup::MountedAt;
use crate::node::{Error, Node, Requested, Result, detach_loop, target_path};
use crate::reach::context::PublishContext;
use crate::reach::decide::Refusal;
use crate::storage::{Access, Capability, Format, VolumeHandle, VolumeId, VolumeRecord};

impl Anchors for Node {
    fn anchor(&self, record: &VolumeRecord, capability: &Capability) -> Result<PublishContext> {
        let look = self.certain_look()?;
        let own = look.devices.of_volume(&self.identity(record));
        self.sweep(&look, &own)?;
        if record.stage.is_none() && !own.is_empty() && look.is_unpinned(&own) {
            // The record has lost its staging, which is not synced. An earlier node may know the device
            // of before, so this one gets another.
            Anchors::release(self, record)?;
        }
        let requested = Requested {
            path: self.make_anchor(record.id)?,
            capability: capability.clone(),
            read_only: false,
        };
        let found = self.find_to_stage(record, &requested)?;
        self.refuse_unformatted(record, &requested, &found.state)?;
        self.stage_at(record, &requested, found)?;
        self.context_of(record, capability)
    }

    fn holders(&self, volume: VolumeId) -> Result<BTreeSet<String>> {
        let record = self.pools.volume(&VolumeHandle::Id(volume))?;
        let look = self.certain_look()?;
        let own = look.devices.of_volume(&self.identity(&record));
        look.refuse_uncertain(volume, &own)?;
        Ok(look.devices.holders(&own))
    }

    fn is_here(&self, node: &str) -> Result<bool> {
        let own = &self.config.node_id;
        let Some(kernel) = self.config.kernels.of(own) else {
            return Ok(false);
        };
        if node == own {
            self.own_marker()?;
        }
        let name = &kernel.name;
        Ok(Devices::is_there(self.pools.kernel(), |all| {
            all.marker_of(node, name)
        })?)
    }

    fn release(&self, record: &VolumeRecord) -> Result<()> {
        let anchor = self.anchor_path(record.id)?;
        let identity = self.identity(record);
        let look = self.certain_look()?;
        let own = look.devices.of_volume(&identity);
        self.sweep(&look, &own)?;
        look.refuse_uncertain(record.id, &own)?;
        if let Some(node) = look.devices.holders(&own).pop_first() {
            let refusal = Refusal::StillHeld { node };
            return Err(Error::FailedPrecondition(refusal.to_string()));
        }
        self.detach_of_kubelets(&look, &own)?;
        let was_staged = self.undo_stage(record, &anchor)?;
        self.refuse_attached(&identity)?;
        if was_staged {
            self.pools.clear_in_volume(&record.id, |r| r.stage = None)?;
        }
        let anchors = self.anchors()?;
        for directory in anchor.ancestors().take_while(|path| **path != anchors) {
            target_path::remove(directory)?;
        }
        Ok(())
    }

    fn grow(&self, record: &VolumeRecord) -> Result<()> {
        let anchor = self.anchor_path(record.id)?;
        let stage = record.stage.as_deref();
        let Some(stage) = stage.filter(|stage| stage.path == anchor) else {
            return Ok(());
        };
        let _under_way = self.pools.growths().begin(record.id);
        // A restart of the owner's container has ended its mount, and others still use the volume.
        self.anchor(record, &stage.capability)?;
        let state = self.state(&self.identity(record), &[&anchor])?;
        let at = match stage.capability.access.fs() {
            Some(fs) => MountedAt::Filesystem(fs),
            None => MountedAt::Device {
                bytes: record.capacity_bytes,
            },
        };
        self.grow_to_image(record, state, &anchor, at, false)
            .map_err(|error| self.explain_full(record, error))
    }
}

impl Node {
    /// Makes the directory of a volume's anchor.
    fn make_anchor(&self, volume: VolumeId) -> Result<PathBuf> {
        let anchor = self.anchor_path(volume)?;
        let parent = anchor.parent().unwrap_or(&anchor);
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent);
        made.map_err(|e| kernel::Error::io("mkdir", parent, e))?;
        target_path::make_directory(&anchor)?;
        Ok(anchor)
    }

    /// Checks that nothing is formatted while another node has the volume. The owner's mount may have
    /// ended with its container, and the volume lives on elsewhere.
    fn refuse_unformatted(
        &self,
        record: &VolumeRecord,
        requested: &Requested,
        state: &VolumeState,
    ) -> Result<()> {
        let is_done = matches!(record.format, Format::Done(_))
            || requested.capability.access == Access::Block
            || state.mount_at(&requested.path).is_some();
        if is_done {
            return Ok(());
        }
        for device in state.own() {
            if self.pools.kernel().is_claimed(&loop_path(device.minor))? {
                return Err(Error::FailedPrecondition(format!(
                    "another node has volume {} mounted, and its record does not say that it has a \
                     filesystem: unpublish it from all nodes first",
                    record.id
                )));
            }
        }
        Ok(())
    }

    /// What other nodes compare with the kernel before they use the volume.
    fn context_of(&self, record: &VolumeRecord, capability: &Capability) -> Result<PublishContext> {
        let kernel = self.pools.kernel();
        let image = file_id(self.pools.open_image(record, false)?)?;
        let own = loops_holding(kernel, image, &record.id.to_string())?;
        let [own] = own.as_slice() else {
            return Err(Error::FailedPrecondition(format!(
                "volume {} is on {} loop devices, not on one: unpublish it from all nodes first",
                record.id,
                own.len()
            )));
        };
        // What is read is of this device as long as it is open.
        let device = kernel.loop_open(own.minor, image)?;
        let diskseq = kernel.loop_diskseq(device.minor)?.ok_or_else(|| {
            let why = "this kernel does not number attachments, so volumes stay on their nodes: Linux \
                       5.15 or later does";
            Error::FailedPrecondition(why.to_owned())
        })?;
        Ok(PublishContext {
            boot: kernel.boot_id()?,
            minor: device.minor,
            diskseq,
            image,
            fs: capability.access.fs(),
            provisioning: record.settings.provisioning,
            discard: record.settings.discard,
            owner: self.config.node_id.clone(),
            many_nodes: capability.mode.is_multi_node(),
        })
    }

    /// Checks that no device of a volume is attached any more. The next node gets another one, so that
    /// no earlier context fits.
    fn refuse_attached(&self, identity: &VolumeIdentity) -> Result<()> {
        let devices = Devices::look(self.pools.kernel())?;
        let own = devices.of_volume(identity);
        let left = own.into_iter().filter_map(|minor| devices.device(minor));
        detach_loop::still_held(&left.cloned().collect::<Vec<_>>())
    }
}
