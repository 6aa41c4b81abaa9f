//! Volumes in reach of several nodes that share one kernel: kind's nodes, for example, are containers
//! of one machine.
//!
//! [`kernels`] has the administrator's word about who shares a kernel. [`markers`] prove it: each node
//! attaches a loop device over a file with its name, which all nodes of the kernel see.

pub mod kernels;
pub mod markers;
