//! Fault disks on the machine's own kernel: real loop devices and filesystems on them. They need
//! root, FUSE, loop devices and the tools of ext4, XFS and btrfs.

#![allow(
    clippy::unwrap_used,
    reason = "a test that panics fails, helpers included"
)]

mod death;
mod filesystems;
mod limits;
mod rig;
mod server;
