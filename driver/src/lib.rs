//! hostloop: a CSI driver that keeps volumes as files on a node's own storage. Each volume is
//! behind a loop device, formatted and mounted for real.
//!
//! The crate is laid out from the kernel up: [`kernel`] wraps system calls, [`storage`] keeps
//! volumes and snapshots on disk, [`controller`] and [`node`] are the CSI services over both. The
//! services contain no operation locks, async runtime or transport: [`grpc`] adds them. [`cli`] and
//! [`serve`] make a program of it. [`faults`] makes volumes fail on request, [`pool_faults`] pools, and
//! [`rpc_faults`] calls, also those of another driver behind the [`proxy`].
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub use hostloop_kernel as kernel;

#[cfg(test)]
extern crate self as hostloop_driver;

#[cfg(test)]
#[macro_use]
#[path = "../tests/testkit/mod.rs"]
mod testkit;

pub mod blocking;
pub mod cli;
pub mod controller;
pub mod csi;
pub mod diagnose;
mod fault_disks;
pub mod faults;
pub mod grpc;
pub mod health;
pub mod inspect;
pub mod node;
pub mod pool_faults;
pub mod proxy;
pub mod reach;
pub mod record;
pub mod rpc_faults;
pub mod serve;
pub mod storage;
