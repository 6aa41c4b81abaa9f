//! The fault disk between a volume's image and its loop device.

use hostloop_fault_disk::limits::Limits;
use serde::{Deserialize, Serialize};

use crate::kernel::FileId;

/// The properties of a volume's fault disk. Each staging makes a new disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultDiskRecord {
    /// The size of its write cache in bytes; 0 if it has none.
    pub cache_bytes: u64,
    /// Its limits, which ControllerModifyVolume can change.
    #[serde(default)]
    pub limits: Limits,
}

/// The file of a fault disk that a loop device is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskFile {
    pub file: FileId,
    /// The image that it stands in for.
    pub image: FileId,
}
