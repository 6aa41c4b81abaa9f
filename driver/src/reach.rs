//! Volumes in reach of all nodes that share one kernel: kind's nodes, for example, are containers of one
//! machine.
//!
//! [`kernels`] has the administrator's word about who shares a kernel. [`markers`] prove it: each node
//! attaches a loop device over a file with its name, which all nodes of the kernel see. [`decide`] says
//! who may use such a volume where, and [`context`] what its node tells the others of its device.
//! [`pins`] keep that device.

pub mod context;
pub mod decide;
pub mod kernels;
pub mod markers;
mod pin_label;
pub mod pins;
#[cfg(test)]
pub(crate) mod testing;
