//! Pools on real filesystems, devices and images. Needs root, loop devices, and the tools of ext4,
//! XFS and btrfs.
#![allow(clippy::unwrap_used)] // a test's way to fail

mod format;
mod full;
mod kinds;
mod life;
mod recovery;
mod space;
mod start;
mod support;
#[path = "../rigs/tools.rs"]
mod tools;
