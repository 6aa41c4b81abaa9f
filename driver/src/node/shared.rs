//! Volumes that all nodes of a kernel may use.
//!
//! The node with the pool is the owner. Once a volume is published to any node, the owner stages it at
//! a path of its own, the anchor. For kubelet, all nodes alike stage it by the kernel alone, the
//! owner's own node too: they compare the publish context with the owner's loop device, pin that, and
//! mount it once more. A pin is a read-only loop device over it. As long as there is one, the kernel
//! gives the device's number to no other file, whichever processes die.
//!
//! Only the owner attaches, formats, checks, grows and detaches the volume's device.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use hostloop_controllers::api::constants::REACH;
use hostloop_report::hex;
use sha2::{Digest, Sha256};

use super::{Error, Node, Result, target_path};
use crate::csi::capability::{RequestedCapability, word};
use crate::diagnose::VolumeIdentity;
use crate::kernel;
use crate::reach::context::PublishContext;
use crate::storage::{self, Access, Capability, VolumeHandle, VolumeId};

mod anchor;
mod at_path;
mod compare;
mod dead_pins;
mod devices;
mod expand;
mod pin;
mod publish;
mod readable_pin;
mod stage;
mod unstage;

pub(super) use pin::Pinning;

use compare::Mismatch;
use devices::Devices;

/// The directory of the anchors, in the state directory.
const ANCHORS: &str = "shared";

impl Node {
    /// The volume of a call if all nodes of a kernel may use it. The record decides. A node without it
    /// goes by the contexts of the call, and by the kernel.
    pub(super) fn shared_volume(
        &self,
        id: &str,
        contexts: &[&BTreeMap<String, String>],
    ) -> Result<Option<VolumeId>> {
        let Ok(VolumeHandle::Id(volume)) = id.parse() else {
            return Ok(None);
        };
        let is_shared = match self.pools.volume(&VolumeHandle::Id(volume)) {
            Ok(record) => record.is_shared(),
            Err(error) => {
                let is_elsewhere = matches!(error, storage::Error::ForeignPool(_));
                contexts.iter().any(|context| context.contains_key(REACH))
                    || is_elsewhere && self.config.kernels.is_on()
                    || self.has_traces(volume, is_elsewhere)?
            }
        };
        Ok(is_shared.then_some(volume))
    }

    /// True if the state directory or the kernel shows that all nodes may use a volume. `is_elsewhere`
    /// is true for one without a pool here.
    fn has_traces(&self, volume: VolumeId, is_elsewhere: bool) -> Result<bool> {
        let anchor = self.anchor_path(volume);
        if anchor.is_ok_and(|anchor| anchor.symlink_metadata().is_ok()) {
            return Ok(true);
        }
        // A node that shared a kernel before still gives back what it has.
        if !is_elsewhere && !self.config.kernels.is_on() {
            return Ok(false);
        }
        let devices = Devices::known(self.pools.kernel())?;
        let own = devices.of_volume(&VolumeIdentity::unrecorded(volume));
        Ok(own.iter().any(|minor| devices.is_pinned(*minor)))
    }

    /// The directory of the anchors, as the mount table shows it.
    fn anchors(&self) -> Result<PathBuf> {
        target_path::place(&self.pools.options().state_dir.join(ANCHORS))
    }

    /// The path at which the owner stages a volume for all nodes.
    fn anchor_path(&self, volume: VolumeId) -> Result<PathBuf> {
        Ok(self
            .anchors()?
            .join(anchor_of(volume, &self.config.driver_name)))
    }
}

/// The path of a volume's anchor, from the directory of the anchors. It ends as kubelet's path of the
/// staged volume does (`makeDeviceMountPath` in pkg/volume/csi). On the owner's node, kubelet sees both
/// mounts, and unstages no volume that has a mount at a path that ends otherwise (`HasMountRefs` in
/// pkg/volume/util).
fn anchor_of(volume: VolumeId, driver: &str) -> PathBuf {
    let handle = volume.to_string();
    let digest = hex(&Sha256::digest(&handle));
    let of_kubelet = format!("plugins/kubernetes.io/csi/{driver}/{digest}/globalmount");
    Path::new(&handle).join(of_kubelet)
}

/// What the owner says of the volume's device.
fn context(volume: VolumeId, of_call: &BTreeMap<String, String>) -> Result<PublishContext> {
    PublishContext::read(of_call)?.ok_or_else(|| {
        Error::FailedPrecondition(format!(
            "all nodes of a kernel may use volume {volume}, and publish_context does not say on which \
             device it is: ControllerPublishVolume comes first, so volumes have to be attached \
             (kubectl hostloop install --attach)"
        ))
    })
}

/// The requested capability of a volume that the owner has staged.
fn capability(
    volume: VolumeId,
    requested: &RequestedCapability,
    context: &PublishContext,
) -> Result<Capability> {
    let mut capability = requested.plain().clone();
    if let (Access::Mount { fs, .. }, None, Some(staged)) =
        (&mut capability.access, requested.named_fs(), context.fs)
    {
        *fs = staged;
    }
    if capability.access.fs() == context.fs {
        return Ok(capability);
    }
    let staged = context.fs.map_or("a block device", kernel::FsType::as_str);
    let requested = word(&capability.access);
    Err(Error::FailedPrecondition(format!(
        "volume {volume} is published as {staged}, not as {requested}"
    )))
}

/// The error for a device that is not as the context says. The owner attaches it again, and says so.
fn not_yet(volume: VolumeId, context: &PublishContext, mismatch: &Mismatch) -> Error {
    Error::NotYet(format!(
        "volume {volume} can't be used yet: {mismatch}; its owner, node {}, has to attach it again",
        context.owner
    ))
}

/// The set of this minor alone.
fn only(minor: u32) -> BTreeSet<u32> {
    BTreeSet::from([minor])
}
