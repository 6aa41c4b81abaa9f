//! What `hostloop status` and `hostloop fsck` show. They change nothing, except `fsck --repair`.

pub mod fsck;
pub mod inventory;
pub mod status;
