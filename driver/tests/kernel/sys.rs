//! The kernel seam on the real kernel: loop devices, mounts and filesystems. Needs root, loop
//! devices, and the tools of ext4, XFS and btrfs; without them the tests fail.

mod attributes;
mod conformance;
mod devices;
mod filesystems;
mod fuse;
mod known;
mod loops;
mod mounts;
mod plain_rename;
mod scratch;
mod silent;
