//! Decides from the observed state of a lease whether a process takes it over.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

/// The state of a lease at its last observed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLease {
    /// The fields that a renewal changes.
    mark: (Option<String>, Option<String>, Option<String>),
    /// When this state was first seen.
    since: Instant,
}

/// The next step for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    /// The lease does not exist: create it.
    Create,
    /// This process holds it: renew it.
    Renew,
    /// It has no holder or has expired: take it.
    Take,
    /// Another process holds it.
    Wait,
}

/// Decides the next step for a lease and returns the observation to remember. `ours` is this
/// process's identity; `wait` applies if the lease has no duration.
pub fn step(
    lease: Option<&Lease>,
    seen: Option<ObservedLease>,
    ours: &str,
    wait: Duration,
    now: Instant,
) -> (LeaseStep, Option<ObservedLease>) {
    let Some(lease) = lease else {
        return (LeaseStep::Create, None);
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec
        .holder_identity
        .clone()
        .filter(|holder| !holder.is_empty());
    let mark = (
        holder.clone(),
        spec.renew_time.as_ref().map(|time| time.0.to_string()),
        lease.metadata.resource_version.clone(),
    );
    let held = seen
        .filter(|seen| seen.mark == mark)
        .unwrap_or(ObservedLease { mark, since: now });
    let duration = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(wait, Duration::from_secs);
    let step = match holder.as_deref() {
        None => LeaseStep::Take,
        Some(holder) if holder == ours => LeaseStep::Renew,
        Some(_) if now.duration_since(held.since) >= duration => LeaseStep::Take,
        Some(_) => LeaseStep::Wait,
    };
    (step, Some(held))
}
