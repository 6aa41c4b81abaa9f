//! What Kubernetes' objects and values mean. These modules make no calls.

pub mod quantity;
pub(crate) mod secret_template;
