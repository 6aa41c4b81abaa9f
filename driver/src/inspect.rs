//! The commands `hostloop status` and `hostloop fsck`. They change nothing, except `fsck --repair`.

pub mod fsck;
pub mod inventory;
pub mod status;
