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

pub mod args;
pub mod controller;
pub(crate) mod csi;
pub mod diagnose;
pub mod fsck;
pub mod health;
pub mod identity;
pub mod node;
pub mod pool;
pub mod request;
pub mod run;
pub mod server;
pub mod status;
pub mod survey;
pub mod sys;
pub mod topology;
