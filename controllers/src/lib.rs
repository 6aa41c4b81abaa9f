//! The Kubernetes side of hostloop.
//!
//! It knows a CSI driver as a client knows it, over a gRPC channel, and never the driver's own
//! code: so it can run in front of any driver. [`runtime`] is what all its loops are built on;
//! every loop is a module of its own, with its decisions as pure functions.

pub mod api;
pub mod attacher;
pub mod capacity;
pub mod cli;
pub mod controller;
pub mod health;
pub mod liveness;
pub mod manager;
pub mod node_cleanup;
pub mod orphaned_volumes;
pub mod placement;
pub mod provisioner;
pub mod registrar;
pub mod resizer;
pub mod roles;
pub mod runtime;
mod secrets;
pub mod snapshot_controller;
pub mod snapshots;
pub mod snapshotter;
#[cfg(test)]
mod testing;
mod watch_scope;

pub use api::quantity;
