//! TLS for gRPC between pods: certificates made by the driver, how a connection is checked, and a
//! listener.

pub mod certificates;
pub mod config;
pub(crate) mod listener;
mod provider;
