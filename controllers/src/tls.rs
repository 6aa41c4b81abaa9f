//! TLS for gRPC between pods: certificates that nobody has to make, and how a connection is checked.

pub mod certificates;
pub mod config;
mod provider;
