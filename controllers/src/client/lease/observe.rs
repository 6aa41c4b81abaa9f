//! Observes a lease that other processes hold.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::takeover::{LeaseStep, ObservedLease, step};
use super::{Leadership, LeaseConfig, is_refused, see};

/// Creates a leadership and a task. The task reads a lease periodically until `stop`, with the verb
/// `get` alone. This process never takes the lease; it only sees whether another one leads
/// ([`Leadership::sight`]).
pub fn observe(
    client: Client,
    terms: LeaseConfig,
    stop: CancellationToken,
) -> (Leadership, impl Future<Output = ()> + Send + use<>) {
    let (_, sight, leadership) = Leadership::seen();
    let api: Api<Lease> = Api::namespaced(client, &terms.namespace);
    let watched = async move {
        let mut seen: Option<ObservedLease> = None;
        loop {
            match timeout(terms.renew_deadline, api.get_opt(&terms.name)).await {
                Ok(Ok(lease)) => {
                    let (step, held) = step(
                        lease.as_ref(),
                        seen.take(),
                        &terms.identity,
                        terms.duration,
                        Instant::now(),
                    );
                    seen = held;
                    see(&sight, matches!(step, LeaseStep::Wait | LeaseStep::Renew));
                }
                Ok(Err(error)) => {
                    tracing::warn!(lease = %terms.name, %error, "cannot read a lease");
                    // Without permission to read the lease, assume that no leader exists. An API
                    // server that does not answer proves nothing about the leader.
                    if is_refused(&error) {
                        see(&sight, false);
                    }
                }
                Err(_) => {
                    tracing::warn!(lease = %terms.name, "cannot read a lease: the API server did not answer in time")
                }
            }
            tokio::time::sleep(terms.retry_period).await;
        }
    };
    let task = async move {
        stop.run_until_cancelled(watched).await;
    };
    (leadership, task)
}
