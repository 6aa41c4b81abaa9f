//! The steps of an orchestrator. Tests refer to objects by names.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;

use crate::client::{mounted, raw_block};

/// A test's name for a volume, a snapshot, a group or a place where a volume is published.
pub type Name = &'static str;

/// Class parameters.
pub type Parameters = &'static [(&'static str, &'static str)];

/// How a volume is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A filesystem of this type.
    Fs(&'static str),
    /// The raw device.
    Block,
}

/// The properties of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its size in MiB.
    pub mib: u64,
    /// How it is used.
    pub access: Access,
    /// Class parameters.
    pub parameters: Parameters,
}

impl Spec {
    /// A filesystem volume of a size that its mkfs accepts.
    pub const fn fs(fs: &'static str, mib: u64) -> Spec {
        Spec {
            mib,
            access: Access::Fs(fs),
            parameters: &[],
        }
    }

    /// A raw device.
    pub const fn block(mib: u64) -> Spec {
        Spec {
            mib,
            access: Access::Block,
            parameters: &[],
        }
    }

    /// Adds class parameters.
    pub const fn with(mut self, parameters: Parameters) -> Spec {
        self.parameters = parameters;
        self
    }

    /// The capability to request: many writers on the node, so that a volume can be published at
    /// several targets.
    pub fn capability(&self) -> csi::VolumeCapability {
        match self.access {
            Access::Fs(fs) => mounted(fs, Mode::SingleNodeMultiWriter),
            Access::Block => raw_block(Mode::SingleNodeMultiWriter),
        }
    }
}

/// The source of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Snapshot(Name),
    /// A group member, by its index.
    Member(Name, usize),
    /// Another volume.
    Volume(Name),
}

/// One step of an orchestrator. Every step can be repeated until it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// CreateVolume.
    Create {
        /// The new volume.
        volume: Name,
        /// The volume's properties.
        spec: Spec,
        /// The volume's source.
        from: Option<Origin>,
    },
    /// ControllerPublishVolume.
    Attach(Name),
    /// NodeStageVolume.
    Stage(Name),
    /// NodePublishVolume.
    Publish {
        volume: Name,
        target: Name,
        /// True if published read-only.
        read_only: bool,
    },
    /// NodePublishVolume of an inline ephemeral volume of this many MiB.
    Inline {
        volume: Name,
        target: Name,
        /// The size in MiB.
        mib: u64,
    },
    /// Writes data into the volume through its first writable target.
    Write(Name),
    /// ControllerExpandVolume to this many MiB, then NodeExpandVolume if the response requires it.
    Expand {
        volume: Name,
        /// The new size in MiB.
        mib: u64,
    },
    /// ControllerModifyVolume.
    Modify {
        volume: Name,
        /// The mutable parameters.
        parameters: Parameters,
    },
    /// CreateSnapshot.
    Snapshot {
        /// The new snapshot.
        snapshot: Name,
        /// The source volume.
        volume: Name,
    },
    /// CreateVolumeGroupSnapshot.
    Group {
        /// The new group.
        group: Name,
        /// The source volumes.
        volumes: &'static [Name],
    },
    /// NodeUnpublishVolume.
    Unpublish { volume: Name, target: Name },
    /// NodeUnstageVolume.
    Unstage(Name),
    /// ControllerUnpublishVolume.
    Detach(Name),
    /// DeleteSnapshot.
    DeleteSnapshot(Name),
    /// DeleteVolumeGroupSnapshot.
    DeleteGroup(Name),
    /// DeleteVolume.
    Delete(Name),
}

impl Step {
    /// The volume that this step takes down, if any. It is not mounted again before the step is
    /// repeated.
    pub fn takes_down(self) -> Option<Name> {
        match self {
            Step::Unpublish { volume, .. }
            | Step::Unstage(volume)
            | Step::Detach(volume)
            | Step::Delete(volume) => Some(volume),
            _ => None,
        }
    }
}
