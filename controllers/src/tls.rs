//! TLS for gRPC between pods: certificates that nobody has to make, how a connection is checked, and a
//! listener.

pub mod certificates;
pub mod config;
pub(crate) mod listener;
mod provider;
