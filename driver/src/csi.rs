//! What fields of CSI requests mean, for both services.

pub(crate) mod capability;
pub mod error;
pub mod identity;
pub mod topology;
pub mod validate;
