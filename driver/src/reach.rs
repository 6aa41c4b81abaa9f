//! Volumes in reach of all nodes that share a kernel.
//!
//! [`decide`] says who may use such a volume where, and [`context`] what its node tells the others of
//! its device. [`pins`] keep that device.

pub mod context;
pub mod decide;
pub mod pins;
