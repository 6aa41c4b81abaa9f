//! What the pool must know of a volume before it exists.

use std::collections::BTreeMap;

use super::{Capability, FaultDiskRecord, Reach, Settings, Source};
use crate::kernel::FsType;

/// Properties of a new volume, as in [`VolumeRecord`](super::VolumeRecord). The pool adds ID, time
/// and format state.
#[derive(Clone, Debug)]
pub struct NewVolume {
    pub name: String,
    /// Size in bytes, a multiple of 4096, already checked against range and filesystem.
    pub capacity_bytes: u64,
    /// The requested size, as in the record.
    pub requested_bytes: Option<u64>,
    pub capabilities: Vec<Capability>,
    pub parameters: BTreeMap<String, String>,
    pub mutable_parameters: BTreeMap<String, String>,
    pub settings: Settings,
    pub mkfs_options: Vec<String>,
    /// The copy source, which is at most as large as the new volume.
    pub source: Option<Source>,
    /// Kubelet's volume handle if the volume is an inline volume.
    pub inline: Option<String>,
    /// The fault disk that the volume is to be on.
    pub fault_disk: Option<FaultDiskRecord>,
    /// The nodes that may use the volume.
    pub reach: Reach,
}

impl NewVolume {
    /// The filesystem of its users. `None` for a raw block volume.
    pub fn fs(&self) -> Option<FsType> {
        self.capabilities.iter().find_map(|one| one.access.fs())
    }
}
