//! The node service on the machine's own kernel: real loop devices, filesystems and mounts.
//! Needs root, loop devices and the tools of all three filesystems.

mod behind;
mod copies;
mod crashes;
mod cuts;
mod failed;
mod fault_disks;
mod faults;
mod growth;
mod lifecycle;
mod mapped;
mod mkfs_options;
mod mount_options;
mod odd;
mod powercut;
mod read_only;
mod renamed;
mod safety;
mod shared;

/// A node over the machine's kernel.
type Rig = crate::testkit::Rig<hostloop_driver::kernel::linux::Linux>;

crate::testkit::scenarios::all_scenarios!(hostloop_driver::kernel::linux::Linux);
