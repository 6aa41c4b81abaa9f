//! The node service on the machine's own kernel: real loop devices, filesystems and mounts.
//! Needs root, loop devices and the tools of all three filesystems.

mod block;
mod copies;
mod expand;
mod failed;
mod inline;
mod lifecycle;
mod odd;
mod rig;
mod safety;
