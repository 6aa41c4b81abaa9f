//! Copying, freezing and comparing on real loop devices and filesystems. Needs root, loop devices,
//! and the tools of ext4, XFS and btrfs.

mod clones;
mod deltas;
mod freezing;
mod metadata;
mod page_cache;
mod refused;
mod support;
mod thick;
