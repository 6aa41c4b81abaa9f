//! Pools on real filesystems, devices and images. Needs root, loop devices, and the tools of ext4,
//! XFS and btrfs.

mod disk_below;
mod format;
mod full;
mod full_on_request;
mod journal;
mod kinds;
mod nfs;
mod recovery;
mod space;
mod start;
mod support;
