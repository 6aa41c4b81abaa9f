//! What records, disk and kernel say about volumes and pools, judged in one place.
//!
//! [`kernel_state`] is one look at loop devices and mounts, [`volume`] and [`pool`] compare it with
//! a record. Recovery, health, `fsck`, `status` and the node service ask here.

pub mod kernel_state;
pub mod pool;
pub mod volume;

pub use kernel_state::KernelState;
pub(crate) use volume::{Found, VolumeIdentity, VolumeState};
