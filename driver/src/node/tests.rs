//! Tests of the node service over the fake kernel: its effects, their order, and what remains when
//! any step fails.

mod btrfs_devices;
mod effects;
mod failed;
mod faults;
mod growth;
mod shared;
mod unreadable;

/// A node over the fake kernel.
type Rig = crate::testkit::Rig<hostloop_fake_kernel::Model>;

crate::testkit::scenarios::all_scenarios!(hostloop_fake_kernel::Model);
