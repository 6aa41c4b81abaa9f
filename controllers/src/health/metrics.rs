//! Metrics of the current health conditions.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::decide::{Condition, KnownConditions, kinds};

/// The latest conditions of volumes and storage. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Conditions(Arc<Mutex<LatestConditions>>);

#[derive(Debug, Default)]
struct LatestConditions {
    volumes: KnownConditions,
    storage: Option<Condition>,
}

impl Conditions {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    /// Gives each metric a sample: the reference shows its labels.
    #[cfg(test)]
    pub(crate) fn sample(&self) {
        use super::decide::{Facts, HealthProblem, Volume, condition_change, volume_changes};

        let problem = HealthProblem {
            status: "",
            reason: String::new(),
            message: String::new(),
        };
        let volume = Volume {
            uid: String::new(),
            name: String::new(),
            handle: String::new(),
            claim: k8s_openapi::api::core::v1::ObjectReference::default(),
        };
        let (found, now) = (vec![problem], tokio::time::Instant::now());
        self.storage(|known| condition_change(known, &found, now));
        let facts = Facts {
            volumes: vec![volume],
            found: std::collections::HashMap::from([(String::new(), found)]),
        };
        self.volumes(|known| volume_changes(known, &facts, now));
    }

    pub(super) fn volumes<T>(&self, work: impl FnOnce(&mut KnownConditions) -> T) -> T {
        work(&mut self.0.lock().volumes)
    }

    pub(super) fn storage<T>(&self, work: impl FnOnce(&mut Option<Condition>) -> T) -> T {
        work(&mut self.0.lock().storage)
    }

    pub(super) fn forget_volumes(&self) {
        self.0.lock().volumes.clear();
    }
}

impl Collector for Conditions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.lock();
        let one = ConstGauge::new(1_i64);
        let help = "Problems of volumes, by status and reason";
        let name = "hostloop_volume_health_abnormal";
        let mut family = encoder.encode_descriptor(name, help, None, ConstGauge::<i64>::TYPE)?;
        for condition in state.volumes.values() {
            // Each sample must be unique, even if the driver reports a problem twice.
            for (status, reason) in kinds(&condition.problems) {
                // Everyone who can reach the endpoint can read metrics, so labels must not name a
                // claim.
                let labels = [
                    ("persistentvolume", condition.volume.as_str()),
                    ("status", status),
                    ("reason", reason),
                ];
                one.encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Problems of the storage under the volumes, by status and reason";
        let name = "hostloop_storage_health_abnormal";
        let mut family = encoder.encode_descriptor(name, help, None, ConstGauge::<i64>::TYPE)?;
        let storage = state
            .storage
            .as_ref()
            .map(|condition| kinds(&condition.problems));
        for (status, reason) in storage.into_iter().flatten() {
            let labels = [("status", status), ("reason", reason)];
            one.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use k8s_openapi::api::core::v1::ObjectReference;
    use prometheus_client::encoding::text::encode;
    use tokio::time::Instant;

    use super::*;
    use crate::health::decide::{Facts, HealthProblem, Volume, condition_change, volume_changes};

    #[test]
    fn what_is_not_well_is_shown() {
        let conditions = Conditions::default();
        let mut registry = Registry::default();
        conditions.register(&mut registry);
        let show = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text.lines()
                .filter(|line| !line.starts_with('#'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert!(show().is_empty());
        let problem = |status, reason: &str| HealthProblem {
            status,
            reason: reason.to_owned(),
            message: String::new(),
        };
        let volume = Volume {
            uid: "u".to_owned(),
            name: "pv".to_owned(),
            handle: "h".to_owned(),
            claim: ObjectReference {
                namespace: Some("ns".to_owned()),
                name: Some("pvc".to_owned()),
                ..ObjectReference::default()
            },
        };
        let found = HashMap::from([("h".to_owned(), vec![problem("DataLoss", "ImageGone"); 2])]);
        let facts = Facts {
            volumes: vec![volume],
            found,
        };
        conditions.volumes(|known| volume_changes(known, &facts, Instant::now()));
        let full = [problem("Degraded", "Full")];
        conditions.storage(|known| condition_change(known, &full, Instant::now()));
        let expected = [
            "hostloop_volume_health_abnormal{persistentvolume=\"pv\",status=\"DataLoss\",reason=\"ImageGone\"} 1",
            "hostloop_storage_health_abnormal{status=\"Degraded\",reason=\"Full\"} 1",
        ];
        assert_eq!(show(), expected);
        conditions.forget_volumes();
        assert_eq!(show(), expected[1..]);
    }
}
