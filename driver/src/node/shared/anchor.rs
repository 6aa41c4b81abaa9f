//! What the owner of a shared volume does while it is published: it stages the volume for all nodes.

use std::collections::BTreeSet;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use super::Devices;
use super::dead_pins::CertainLook;
use crate::controller::{AnchorLook, Anchors};
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::kernel::{self, file_id, loop_path, loops_holding};
use crate::node::volume_lookup::MountedAt;
use crate::node::{Error, Node, Requested, Result, detach_loop, target_path};
use crate::reach::context::PublishContext;
use crate::reach::decide::{DeviceFacts, Refusal, is_left_over};
use crate::storage::{Access, Capability, Format, VolumeId, VolumeRecord};

/// One look of the owner at a volume.
struct OwnersLook<'n> {
    node: &'n Node,
    volume: VolumeId,
    look: CertainLook,
    /// The minors of the volume's own devices.
    own: BTreeSet<u32>,
}

impl Anchors for Node {
    fn look(&self, record: &VolumeRecord) -> Result<Box<dyn AnchorLook + '_>> {
        Ok(Box::new(self.owners_look(record)?))
    }

    fn grow(&self, record: &VolumeRecord) -> Result<()> {
        let anchor = self.anchor_path(record.id)?;
        let stage = record.stage.as_deref();
        let Some(stage) = stage.filter(|stage| stage.path == anchor) else {
            return Ok(());
        };
        let _under_way = self.pools.growths().begin(record.id);
        // A restart of the owner's container has ended its mount, and others still use the volume.
        self.owners_look(record)?
            .anchor(record, &stage.capability)?;
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

impl AnchorLook for OwnersLook<'_> {
    fn holders(&self) -> Result<BTreeSet<String>> {
        self.look.refuse_uncertain(self.volume, &self.own)?;
        Ok(self.look.devices.holders(&self.own))
    }

    fn is_here(&self, node: &str) -> Result<bool> {
        let own = &self.node.config.node_id;
        let Some(kernel) = self.node.config.kernels.of(own) else {
            return Ok(false);
        };
        if node == own {
            // It may be later than the look.
            return self.node.own_marker().map(|_| true);
        }
        let marker = self.look.devices.marker_of(node, &kernel.name);
        Ok(marker.is_some())
    }

    fn is_left_over(&self, record: &VolumeRecord) -> bool {
        is_left_over(DeviceFacts {
            is_published: !record.publications.is_empty(),
            is_staged: record.stage.is_some(),
            is_attached: !self.own.is_empty(),
            is_pinned: !self.look.is_unpinned(&self.own),
        })
    }

    fn anchor(&self, record: &VolumeRecord, capability: &Capability) -> Result<PublishContext> {
        let node = self.node;
        node.sweep(&self.look, &self.own)?;
        let requested = Requested {
            path: node.make_anchor(record.id)?,
            capability: capability.clone(),
            read_only: false,
        };
        let found = node.find_to_stage(record, &requested)?;
        node.refuse_unformatted(record, &requested, &found.state)?;
        node.stage_at(record, &requested, found)?;
        node.context_of(record, capability)
    }

    fn release(&self, record: &VolumeRecord) -> Result<()> {
        let node = self.node;
        let anchor = node.anchor_path(record.id)?;
        node.sweep(&self.look, &self.own)?;
        if let Some(node) = self.holders()?.pop_first() {
            let refusal = Refusal::StillHeld { node };
            return Err(Error::FailedPrecondition(refusal.to_string()));
        }
        node.detach_no_pins(&self.look, &self.own)?;
        let was_staged = node.undo_stage(record, &anchor)?;
        node.refuse_attached(&node.identity(record))?;
        if was_staged {
            node.pools
                .clear_in_volume(&record.id, |record| record.stage = None)?;
        }
        let anchors = node.anchors()?;
        for directory in anchor.ancestors().take_while(|path| **path != anchors) {
            target_path::remove(directory)?;
        }
        Ok(())
    }
}

impl Node {
    fn owners_look(&self, record: &VolumeRecord) -> Result<OwnersLook<'_>> {
        let look = self.certain_look()?;
        let own = look.devices.of_volume(&self.identity(record));
        Ok(OwnersLook {
            node: self,
            volume: record.id,
            look,
            own,
        })
    }

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
