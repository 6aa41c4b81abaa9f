//! `status` and `fsck` on the machine's own kernel. They need root and loop devices.

mod fsck;
mod rig;
mod status;
