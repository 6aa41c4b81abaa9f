//! Metrics of the faults of claims.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::FaultState;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FaultChange {
    fault: &'static str,
    state: &'static str,
}

/// The counter and the gauge. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    changes: Family<FaultChange, Counter>,
    active: Gauge,
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "hostloop_claim_faults",
            "Changes of the faults that claims ask for, by fault and new state",
            self.changes.clone(),
        );
        registry.register(
            "hostloop_claim_faults_active",
            "Volumes of this node that have a fault because their claims ask for it",
            self.active.clone(),
        );
    }

    /// Gives each metric a sample: the reference shows its labels.
    #[cfg(test)]
    pub(crate) fn sample(&self) {
        self.changed("", FaultState::Absent);
    }

    pub(super) fn changed(&self, fault: &'static str, state: FaultState) {
        let state = state.name();
        self.changes
            .get_or_create(&FaultChange { fault, state })
            .inc();
    }

    pub(super) fn active(&self, volumes: usize) {
        self.active.set(i64::try_from(volumes).unwrap_or(i64::MAX));
    }
}
