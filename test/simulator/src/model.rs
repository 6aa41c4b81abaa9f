//! Models of Kubernetes' own controllers and of kubelet. Each is an async function over a client of
//! its own. It runs until it is dropped, and waits only in virtual time.

/// Starts all models.
pub(crate) fn start() {}
