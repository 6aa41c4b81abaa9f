//! What to do about a lease, by what is seen of it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

/// A lease as it was last seen to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLease {
    /// What would change if its holder renewed it.
    mark: (Option<String>, Option<String>, Option<String>),
    /// When this was first seen.
    since: Instant,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is none: make it.
    Create,
    /// It is ours: renew it.
    Renew,
    /// Nobody's, or its holder has let it run out: take it.
    Take,
    /// Somebody holds it.
    Wait,
}

/// What to do about a lease as the server has it, and what to remember of it. `ours` is the
/// identity that wants it, `wait` the duration to go by if the lease names none.
pub fn step(
    lease: Option<&Lease>,
    seen: Option<ObservedLease>,
    ours: &str,
    wait: Duration,
    now: Instant,
) -> (Step, Option<ObservedLease>) {
    let Some(lease) = lease else {
        return (Step::Create, None);
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
        None => Step::Take,
        Some(holder) if holder == ours => Step::Renew,
        Some(_) if now.duration_since(held.since) >= duration => Step::Take,
        Some(_) => Step::Wait,
    };
    (step, Some(held))
}
