//! Acquires and holds a lease.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::takeover::{LeaseStep, ObservedLease, step};
use super::{LeaderObservation, Leadership, LeaseConfig, Until, is_refused, see};
use crate::metrics::Metrics;

/// Creates a leadership and a task. The task acquires and renews a lease until `stop`, and then
/// releases it. The client should have no rate limit and no retries.
pub fn hold(
    client: Client,
    terms: LeaseConfig,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> (Leadership, impl Future<Output = ()> + Send + use<>) {
    let (until, sight, leadership) = Leadership::seen();
    metrics.leads(&terms.name, false);
    let holder = Holder {
        api: Api::namespaced(client, &terms.namespace),
        terms,
        until,
        sight,
        metrics,
        seen: None,
    };
    (leadership, holder.run(stop))
}

struct Holder {
    api: Api<Lease>,
    terms: LeaseConfig,
    until: watch::Sender<Until>,
    sight: watch::Sender<LeaderObservation>,
    metrics: Arc<Metrics>,
    seen: Option<ObservedLease>,
}

impl Holder {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            // The holder counts from before the write; other processes count from after it.
            let asked = Instant::now();
            let leading = *self.until.borrow();
            let deadline = leading.unwrap_or(asked + self.terms.renew_deadline);
            let tried = tokio::select! {
                tried = timeout_at(deadline, self.attempt(asked)) => tried,
                () = stop.cancelled() => break,
            };
            if let Some(led) = tried.as_ref().ok().and_then(is_led) {
                see(&self.sight, led);
            }
            match tried {
                Ok(Ok(true)) => self.publish(Some(asked + self.terms.renew_deadline)),
                Ok(Ok(false)) => self.publish(None),
                Ok(Err(error)) => {
                    tracing::warn!(lease = %self.terms.name, %error, "cannot renew a lease")
                }
                Err(_) => {
                    tracing::warn!(lease = %self.terms.name, "cannot renew a lease: the API server did not answer in time")
                }
            }
            if self
                .until
                .borrow()
                .is_some_and(|until| until <= Instant::now())
            {
                self.publish(None);
            }
            let wait = tokio::time::sleep(self.terms.retry_period);
            if stop.run_until_cancelled(wait).await.is_none() {
                break;
            }
        }
        let led = self.until.borrow().is_some();
        self.publish(None);
        if led {
            let deadline = Instant::now() + self.terms.renew_deadline;
            if let Ok(Err(error)) = timeout_at(deadline, self.give_up()).await {
                tracing::warn!(lease = %self.terms.name, %error, "cannot release a lease");
            }
        }
    }

    fn publish(&self, until: Until) {
        let led = self.until.send_replace(until).is_some();
        if led != until.is_some() {
            let leads = until.is_some();
            tracing::info!(
                lease = %self.terms.name, holder = %self.terms.identity, leads,
                "leadership changed"
            );
            self.metrics.leads(&self.terms.name, leads);
            hostloop_events::work::lease(&self.terms.name, leads);
        }
    }

    /// True if this process now holds the lease. An error leaves that open.
    async fn attempt(&mut self, now: Instant) -> Result<bool, kube::Error> {
        let lease = self.api.get_opt(&self.terms.name).await?;
        let (step, seen) = step(
            lease.as_ref(),
            self.seen.take(),
            &self.terms.identity,
            self.terms.duration,
            now,
        );
        self.seen = seen;
        let params = PostParams::default();
        let written = match (step, lease) {
            (LeaseStep::Wait, _) => return Ok(false),
            (LeaseStep::Create, _) | (_, None) => self.api.create(&params, &self.fresh()).await,
            (LeaseStep::Renew | LeaseStep::Take, Some(lease)) => {
                let lease = self.ours(lease, step == LeaseStep::Take);
                self.api.replace(&self.terms.name, &params, &lease).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            // Another process was quicker.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn fresh(&self) -> Lease {
        let metadata = ObjectMeta {
            name: Some(self.terms.name.clone()),
            namespace: Some(self.terms.namespace.clone()),
            ..ObjectMeta::default()
        };
        self.ours(
            Lease {
                metadata,
                spec: None,
            },
            true,
        )
    }

    /// The lease object as its holder writes it. It keeps its `resourceVersion`.
    fn ours(&self, mut lease: Lease, taken: bool) -> Lease {
        let now = Some(MicroTime(Timestamp::now()));
        lease.labels_mut().extend(self.terms.labels.clone());
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if taken {
            let before = spec.lease_transitions;
            spec.lease_transitions = Some(before.map_or(0, |times| times.saturating_add(1)));
            spec.acquire_time = now.clone();
        }
        spec.holder_identity = Some(self.terms.identity.clone());
        spec.renew_time = now;
        let seconds = self.terms.duration.as_secs().max(1);
        spec.lease_duration_seconds = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
        lease
    }

    async fn give_up(&self) -> Result<(), kube::Error> {
        let Some(mut lease) = self.api.get_opt(&self.terms.name).await? else {
            return Ok(());
        };
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_deref() != Some(&self.terms.identity) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let params = PostParams::default();
        self.api
            .replace(&self.terms.name, &params, &lease)
            .await
            .map(drop)
    }
}

/// Derives from an attempt whether any process leads; `None` if the result proves nothing. After an
/// attempt without error, this process or another one holds the lease. A rejected request, for
/// example without permission or namespace, counts as no leader.
fn is_led(tried: &Result<bool, kube::Error>) -> Option<bool> {
    match tried {
        Ok(_) => Some(true),
        Err(error) => is_refused(error).then_some(false),
    }
}
