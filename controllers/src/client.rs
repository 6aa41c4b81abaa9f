//! Access to the API server: requests, events and leases.

pub mod events;
pub mod kube;
pub mod lease;

pub use events::{EventKind, Events};
pub use kube::{ApiError, Kube, Resource, unless_gone};
pub use lease::Leadership;
