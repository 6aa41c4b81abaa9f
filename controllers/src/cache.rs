//! Caches of API objects, kept up to date by watches, and the part of the cluster that they cover.

pub mod caches;
mod find;
pub mod missing_kinds;
pub mod store;

pub use caches::Caches;
pub use missing_kinds::Served;
pub use store::{Change, Index, Store, WatchScope};
