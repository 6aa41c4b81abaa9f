//! Exposes metrics of the controllers, and whether their leases are renewed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

use crate::client::Leadership;
use crate::metrics::Metrics;
use crate::{
    capacity, claim_faults, health, orphaned_volumes, placement, provisioner, snapshot_controller,
    snapshot_metadata,
};

/// Upstream's grace for a lease that could not be renewed.
const LEASE_GRACE: Duration = Duration::from_secs(20);

/// Metrics and leases of the controllers, for the surrounding process. Clones share them.
#[derive(Clone)]
pub struct Telemetry(Arc<TelemetryState>);

struct TelemetryState {
    registry: Registry,
    metrics: Arc<Metrics>,
    counts: Counts,
    leaders: Mutex<Vec<(String, Leadership)>>,
}

/// The metrics of individual controllers.
#[derive(Clone, Default)]
pub(super) struct Counts {
    pub(super) capacity: capacity::Metrics,
    pub(super) claim_faults: claim_faults::Metrics,
    pub(super) health: health::Conditions,
    pub(super) orphans: orphaned_volumes::Metrics,
    pub(super) snapshot_controller: snapshot_controller::Metrics,
    pub(super) snapshot_metadata: snapshot_metadata::Metrics,
    pub(super) provisioner: provisioner::Metrics,
    pub(super) placement: placement::Metrics,
}

impl Counts {
    fn register(&self, registry: &mut Registry) {
        self.capacity.register(registry);
        self.claim_faults.register(registry);
        self.health.register(registry);
        self.orphans.register(registry);
        self.snapshot_controller.register(registry);
        self.snapshot_metadata.register(registry);
        self.provisioner.register(registry);
        self.placement.register(registry);
    }
}

impl Telemetry {
    /// Returns metrics that are all zero.
    pub fn new() -> Self {
        let metrics = Arc::new(Metrics::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let counts = Counts::default();
        counts.register(&mut registry);
        Telemetry(Arc::new(TelemetryState {
            registry,
            metrics,
            counts,
            leaders: Mutex::default(),
        }))
    }

    /// Writes the metrics as OpenMetrics text, without the end mark.
    pub fn metrics(&self, text: &mut String) -> fmt::Result {
        encode_registry(text, &self.0.registry)
    }

    /// Fails if a leader did not renew its lease in time.
    pub fn leaders(&self) -> Result<(), String> {
        for (lease, leader) in self.0.leaders.lock().iter() {
            if leader.overdue(LEASE_GRACE) {
                return Err(format!("lease {lease} is held but was not renewed in time"));
            }
        }
        Ok(())
    }

    pub(super) fn add_leader(&self, lease: &str, leader: &Leadership) {
        self.0
            .leaders
            .lock()
            .push((lease.to_owned(), leader.clone()));
    }

    pub(super) fn common(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    pub(super) fn counts(&self) -> Counts {
        self.0.counts.clone()
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Telemetry::new()
    }
}

#[cfg(test)]
mod tests {
    use hostloop_document::{check_named_table, metrics::metrics_table};

    use super::*;

    #[test]
    fn the_reference_has_every_metric() {
        let telemetry = Telemetry::new();
        telemetry.common().sample();
        let counts = telemetry.counts();
        counts.claim_faults.sample();
        counts.health.sample();
        counts.snapshot_controller.sample();
        counts.snapshot_metadata.sample();
        counts.provisioner.sample();
        counts.placement.sample();
        let mut text = String::new();
        telemetry.metrics(&mut text).unwrap();
        check_named_table(
            "docs/reference/metrics.md",
            "controllers",
            &metrics_table(&text),
            "controllers/src/manager/telemetry.rs",
        );
    }
}
