//! The Kubernetes side of hostloop.
//!
//! It treats a CSI driver as a client does, over a gRPC channel, and never uses the driver's code.
//! So it can run in front of any driver. [`client`], [`cache`], [`csi`] and [`controller`] are the
//! base of all controllers. Every controller is a module of its own, with its decisions as pure
//! functions.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub use hostloop_http_server as http_server;
pub use hostloop_http_server::connections;

pub mod api;
pub mod attacher;
pub mod cache;
pub mod capacity;
pub mod claim_faults;
pub mod cli;
pub mod client;
pub mod controller;
pub mod csi;
mod filtered_stream;
pub mod flags;
pub mod grpc_server;
pub mod health;
mod kept_fields;
pub mod liveness;
pub mod manager;
pub mod metrics;
pub mod node_cleanup;
pub mod node_endpoint;
pub mod orphaned_volumes;
pub mod own_pod;
mod pauses;
pub mod per_controller;
pub mod placement;
pub mod provisioner;
pub mod queue;
pub mod registrar;
pub mod resizer;
pub mod roles;
mod secrets;
pub mod snapshot_controller;
pub mod snapshot_metadata;
pub mod snapshots;
pub mod snapshotter;
pub mod socket;
pub mod tasks;
#[cfg(test)]
mod testing;
pub mod tls;
mod watch_scope;
