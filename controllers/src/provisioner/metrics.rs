//! The provisioner's metrics, with the names of the upstream provisioner.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use std::time::Duration;

const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Provision {
    class: String,
    source: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Deletion {
    class: String,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

fn durations<L: Clone + std::hash::Hash + Eq>() -> Durations<L> {
    Family::new_with_constructor(|| Histogram::new(BUCKETS))
}

/// The counters and histograms. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    provisioned: Family<Provision, Counter>,
    not_provisioned: Family<Provision, Counter>,
    provision_took: Durations<Provision>,
    deleted: Family<Deletion, Counter>,
    not_deleted: Family<Deletion, Counter>,
    deletion_took: Durations<Deletion>,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            provisioned: Family::default(),
            not_provisioned: Family::default(),
            provision_took: durations(),
            deleted: Family::default(),
            not_deleted: Family::default(),
            deletion_took: durations(),
        }
    }
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("controller");
        registry.register(
            "persistentvolumeclaim_provision",
            "Volumes made for claims, by class and source",
            self.provisioned.clone(),
        );
        registry.register(
            "persistentvolumeclaim_provision_failed",
            "Failed attempts to make a volume, by class and source",
            self.not_provisioned.clone(),
        );
        registry.register_with_unit(
            "persistentvolumeclaim_provision_duration",
            "Time successful attempts to make a volume took, by class and source",
            Unit::Seconds,
            self.provision_took.clone(),
        );
        registry.register(
            "persistentvolume_delete",
            "Volumes deleted, by class",
            self.deleted.clone(),
        );
        registry.register(
            "persistentvolume_delete_failed",
            "Failed attempts to delete a volume, by class",
            self.not_deleted.clone(),
        );
        registry.register_with_unit(
            "persistentvolume_delete_duration",
            "Time successful attempts to delete a volume took, by class",
            Unit::Seconds,
            self.deletion_took.clone(),
        );
    }

    pub(crate) fn provisioned(&self, class: &str, source: &str, took: Option<Duration>) {
        let labels = Provision {
            class: class.to_owned(),
            source: source.to_owned(),
        };
        match took {
            Some(took) => {
                self.provisioned.get_or_create(&labels).inc();
                let durations = self.provision_took.get_or_create(&labels);
                durations.observe(took.as_secs_f64());
            }
            None => {
                self.not_provisioned.get_or_create(&labels).inc();
            }
        }
    }

    pub(crate) fn deleted(&self, class: &str, took: Option<Duration>) {
        let labels = Deletion {
            class: class.to_owned(),
        };
        match took {
            Some(took) => {
                self.deleted.get_or_create(&labels).inc();
                let durations = self.deletion_took.get_or_create(&labels);
                durations.observe(took.as_secs_f64());
            }
            None => {
                self.not_deleted.get_or_create(&labels).inc();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_names() {
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.provisioned("fast", "VolumeSnapshot", Some(Duration::from_millis(20)));
        metrics.provisioned("fast", "", None);
        metrics.deleted("fast", Some(Duration::from_secs(2)));
        metrics.deleted("slow", None);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("into a string");
        for line in [
            r#"controller_persistentvolumeclaim_provision_total{class="fast",source="VolumeSnapshot"} 1"#,
            r#"controller_persistentvolumeclaim_provision_failed_total{class="fast",source=""} 1"#,
            r#"controller_persistentvolumeclaim_provision_duration_seconds_bucket{le="0.025",class="fast",source="VolumeSnapshot"} 1"#,
            r#"controller_persistentvolume_delete_total{class="fast"} 1"#,
            r#"controller_persistentvolume_delete_failed_total{class="slow"} 1"#,
            r#"controller_persistentvolume_delete_duration_seconds_count{class="fast"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\nin\n{text}");
        }
    }
}
