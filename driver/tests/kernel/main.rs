//! Tests on the machine's own kernel: real loop devices, filesystems and mounts. They need root,
//! loop devices and the tools of ext4, XFS and btrfs. Tests of all modules share one process, so
//! that none may change its working directory or environment.

#![allow(
    clippy::unwrap_used,
    reason = "a test that panics fails, helpers included"
)]

#[macro_use]
#[path = "../testkit/mod.rs"]
mod testkit;

mod controller;
mod copy;
mod look;
mod node;
mod pool;
mod server;
mod sys;
mod tools;
