//! The Kubernetes side of hostloop.
//!
//! It knows a CSI driver as a client knows it, over a gRPC channel, and never the driver's own
//! code: so it can run in front of any driver. [`runtime`] is what all its loops are built on.

pub mod runtime;
