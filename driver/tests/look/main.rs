//! `status` and `fsck` on the machine's own kernel. They need root and loop devices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fsck;
mod rig;
mod status;
