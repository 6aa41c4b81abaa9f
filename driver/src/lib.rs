//! hostloop: a CSI driver whose volumes are files on a node's own storage, each behind a loop
//! device, formatted and mounted for real.
//!
//! The crate is laid out from the kernel up: [`sys`] wraps what the kernel does, [`pool`] keeps
//! volumes and snapshots on disk, [`controller`] and [`node`] are the CSI services over both.
//! These know no locks, no runtime and no wire: [`server`] adds them. [`args`] and [`run`] make a
//! program of it.

#[cfg(test)]
extern crate self as hostloop_driver;

#[cfg(test)]
#[macro_use]
mod testkit;

pub mod cli;
pub mod controller;
pub mod csi;
pub mod diagnose;
pub mod grpc;
pub mod inspect;
pub mod kernel;
pub mod node;
pub mod serve;
pub mod storage;
