//! What Kubernetes' objects and values mean. These modules make no calls.

pub mod quantity;
