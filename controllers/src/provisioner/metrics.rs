//! The provisioner's metrics, with the names of the upstream provisioner.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use std::fmt::Debug;
use std::hash::Hash;
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

/// The attempts of one kind.
#[derive(Clone, Debug)]
struct Attempts<L: Clone + Hash + Eq> {
    succeeded: Family<L, Counter>,
    failed: Family<L, Counter>,
    took: Durations<L>,
}

impl<L> Attempts<L>
where
    L: Clone + Debug + Hash + Eq + EncodeLabelSet + Send + Sync + 'static,
{
    fn new() -> Self {
        Attempts {
            succeeded: Family::default(),
            failed: Family::default(),
            took: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
        }
    }

    /// Registers the metrics with these help texts: successes, failures and durations.
    fn register(&self, registry: &mut Registry, name: &str, help: [&str; 3]) {
        let [succeeded, failed, took] = help;
        registry.register(name, succeeded, self.succeeded.clone());
        registry.register(format!("{name}_failed"), failed, self.failed.clone());
        let duration = format!("{name}_duration");
        registry.register_with_unit(duration, took, Unit::Seconds, self.took.clone());
    }

    /// Counts an attempt; `took` is `None` if it failed.
    fn count(&self, labels: &L, took: Option<Duration>) {
        match took {
            Some(took) => {
                self.succeeded.get_or_create(labels).inc();
                let durations = self.took.get_or_create(labels);
                durations.observe(took.as_secs_f64());
            }
            None => {
                self.failed.get_or_create(labels).inc();
            }
        }
    }
}

/// The counters and histograms. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    provisions: Attempts<Provision>,
    deletions: Attempts<Deletion>,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            provisions: Attempts::new(),
            deletions: Attempts::new(),
        }
    }
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("controller");
        let help = [
            "Volumes made for claims, by class and source",
            "Failed attempts to make a volume, by class and source",
            "Time successful attempts to make a volume took, by class and source",
        ];
        self.provisions
            .register(registry, "persistentvolumeclaim_provision", help);
        let help = [
            "Volumes deleted, by class",
            "Failed attempts to delete a volume, by class",
            "Time successful attempts to delete a volume took, by class",
        ];
        self.deletions
            .register(registry, "persistentvolume_delete", help);
    }

    /// Gives each metric a sample: the reference shows its labels.
    #[cfg(test)]
    pub(crate) fn sample(&self) {
        for took in [None, Some(Duration::ZERO)] {
            self.provisioned("", "", took);
            self.deleted("", took);
        }
    }

    pub(crate) fn provisioned(&self, class: &str, source: &str, took: Option<Duration>) {
        let (class, source) = (class.to_owned(), source.to_owned());
        self.provisions.count(&Provision { class, source }, took);
    }

    pub(crate) fn deleted(&self, class: &str, took: Option<Duration>) {
        let class = class.to_owned();
        self.deletions.count(&Deletion { class }, took);
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
