//! What all loops are built on: a queue of keys to work on, and the CSI driver as they see it.

pub mod csi;
pub mod queue;
