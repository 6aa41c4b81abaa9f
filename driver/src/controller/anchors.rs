//! What the controller needs of the Node service for shared volumes. Their node attaches and mounts a
//! volume when it is published to the first node, and ends that when it is unpublished from the last.

use std::collections::BTreeSet;

use super::{Controller, Error, Result};
use crate::reach::context::PublishContext;
use crate::storage::{Capability, VolumeId, VolumeRecord};

/// The anchors of shared volumes: the staging of each at a path of its own node.
pub trait Anchors: Send + Sync {
    /// Reads all loop devices, for all that one call decides and does about a volume.
    fn look(&self, record: &VolumeRecord) -> Result<Box<dyn AnchorLook + '_>>;

    /// Grows device and filesystem to the image, if the volume is staged at its anchor.
    fn grow(&self, record: &VolumeRecord) -> Result<()>;
}

/// The devices of a volume and their users, as one look found them. A record is of the same volume,
/// and may be later than the look.
pub trait AnchorLook {
    /// The nodes with a pin on the volume's device that still lives.
    fn holders(&self) -> Result<BTreeSet<String>>;

    /// True if the marker of this node is on this kernel.
    fn is_here(&self, node: &str) -> Result<bool>;

    /// True if the volume's device is of an earlier use, and not for the next publication.
    fn is_left_over(&self, record: &VolumeRecord) -> bool;

    /// Stages the volume at its anchor, or finishes that, and returns what other nodes need to know
    /// of its device. Detaches the pins of containers that are gone first.
    fn anchor(&self, record: &VolumeRecord, capability: &Capability) -> Result<PublishContext>;

    /// Ends the staging: nothing of the volume stays attached. Detaches the pins of containers that
    /// are gone first.
    fn release(&self, record: &VolumeRecord) -> Result<()>;
}

impl Controller {
    /// The anchors for a call about a shared volume. Without them nothing is known of its users, so
    /// nothing is done with it.
    pub(super) fn anchors(&self, volume: VolumeId) -> Result<&dyn Anchors> {
        self.anchors.as_deref().ok_or_else(|| {
            Error::FailedPrecondition(format!(
                "volume {volume} may be in use on all nodes of a kernel, and this driver does not \
                 know which: start it with --kernels"
            ))
        })
    }
}
