//! What fields of CSI requests mean, for both services.

pub(crate) mod capability;
