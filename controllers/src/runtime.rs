//! The foundations of all controllers: clients for the API server and the CSI driver, caches of API
//! objects, work queues, and leadership.

pub mod boolean;
pub mod caches;
pub mod capacity_signal;
pub mod csi;
pub mod driver;
pub mod duration;
pub mod events;
pub mod kube;
pub mod lease;
pub mod owner;
pub mod pools;
pub mod scope;
pub(crate) mod tasks;
pub mod watch;

pub use caches::Caches;
pub use capacity_signal::Room;
pub use driver::Driver;
pub use events::{Events, Kind as EventKind};
pub use kube::{ApiError, Kube, Resource};
pub use lease::Leadership;
pub use owner::Ownership;
pub use pools::Pools;
pub use scope::Scope;
pub use watch::{Change, Index, Store, Width};
