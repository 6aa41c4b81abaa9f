//! Caches of API objects, kept up to date by watches, and the part of the cluster that they cover.

pub mod caches;
pub mod scope;
pub mod store;
pub mod watch_scope;

pub use caches::Caches;
pub use scope::Scope;
pub use store::{Change, Index, Store, Width};
