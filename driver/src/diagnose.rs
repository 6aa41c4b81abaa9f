//! What records, disk and kernel say about volumes and pools, and what is wrong with them.
//!
//! [`kernel_state`] is one look at loop devices and mounts, [`volume`] and [`pool`] compare it with
//! a record, and find each [`Problem`]. Recovery, health, `fsck`, `status` and the node service ask
//! here.

pub mod kernel_state;
mod lost;
mod noted_fault;
pub mod pool;
mod problem;
pub mod volume;

pub use kernel_state::KernelState;
pub use lost::Lost;
pub use noted_fault::NotedFault;
pub use problem::Problem;
pub(crate) use problem::{elapsed, lengths_differ};
pub(crate) use volume::{MountedObject, VolumeIdentity, VolumeState};
