//! What an orchestrator does, one step at a time, by the names a test gives to things.

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

/// What a new volume is to be.
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
    /// A filesystem of a size its mkfs takes.
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

    /// With class parameters.
    pub const fn with(mut self, parameters: Parameters) -> Spec {
        self.parameters = parameters;
        self
    }

    /// The capability to ask for: many writers on the node, so that a volume can be published at
    /// several targets.
    pub fn capability(&self) -> csi::VolumeCapability {
        match self.access {
            Access::Fs(fs) => mounted(fs, Mode::SingleNodeMultiWriter),
            Access::Block => raw_block(Mode::SingleNodeMultiWriter),
        }
    }
}

/// What a volume is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A snapshot.
    Snapshot(Name),
    /// A group member, by its index.
    Member(Name, usize),
    /// Another volume.
    Volume(Name),
}

/// One thing an orchestrator does. Every step can be repeated until it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// CreateVolume.
    Create {
        /// The new volume.
        volume: Name,
        /// What it is to be.
        spec: Spec,
        /// What it is made from.
        from: Option<Origin>,
    },
    /// ControllerPublishVolume.
    Attach(Name),
    /// NodeStageVolume.
    Stage(Name),
    /// NodePublishVolume.
    Publish {
        /// The volume.
        volume: Name,
        /// Where.
        target: Name,
        /// Read-only.
        read_only: bool,
    },
    /// NodePublishVolume of an inline ephemeral volume of this many MiB.
    Inline {
        /// The volume.
        volume: Name,
        /// Where.
        target: Name,
        /// Its size.
        mib: u64,
    },
    /// Data goes into the volume through its first writable target.
    Write(Name),
    /// ControllerExpandVolume to this many MiB, then NodeExpandVolume if that is asked for.
    Expand {
        /// The volume.
        volume: Name,
        /// Its new size.
        mib: u64,
    },
    /// ControllerModifyVolume.
    Modify {
        /// The volume.
        volume: Name,
        /// The mutable parameters.
        parameters: Parameters,
    },
    /// CreateSnapshot.
    Snapshot {
        /// The new snapshot.
        snapshot: Name,
        /// Of this volume.
        volume: Name,
    },
    /// CreateVolumeGroupSnapshot.
    Group {
        /// The new group.
        group: Name,
        /// Of these volumes.
        volumes: &'static [Name],
    },
    /// NodeUnpublishVolume.
    Unpublish {
        /// The volume.
        volume: Name,
        /// Where it was.
        target: Name,
    },
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
    /// The volume this step takes down, if that is what it does: it is not put up again before
    /// the step is repeated.
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
