//! Metrics of the duration of snapshot operations, with the names of the upstream controller.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

const BUCKETS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

/// An operation on a snapshot or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    /// The time until the snapshot is taken.
    Create,
    /// The time until the snapshot can be restored from.
    CreateAndReady,
    /// The time until the object is gone.
    Delete,
}

/// The kind of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Of {
    Snapshot,
    Group,
}

fn name(of: Of, operation: Operation) -> &'static str {
    match (of, operation) {
        (Of::Snapshot, Operation::Create) => "CreateSnapshot",
        (Of::Snapshot, Operation::CreateAndReady) => "CreateSnapshotAndReady",
        (Of::Snapshot, Operation::Delete) => "DeleteSnapshot",
        (Of::Group, Operation::Create) => "CreateGroupSnapshot",
        (Of::Group, Operation::CreateAndReady) => "CreateGroupSnapshotAndReady",
        (Of::Group, Operation::Delete) => "DeleteGroupSnapshot",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    driver_name: String,
    operation_name: &'static str,
    snapshot_type: &'static str,
    operation_status: &'static str,
}

#[derive(Debug)]
struct Begun {
    at: Instant,
    driver: Option<String>,
    beforehand: bool,
}

type OperationKey = (Of, Operation, String);

/// The durations, and the operations in progress.
#[derive(Clone, Debug)]
pub struct Metrics {
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    begun: Arc<Mutex<HashMap<OperationKey, Begun>>>,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            seconds: Family::new_with_constructor(histogram as fn() -> Histogram),
            in_flight: Gauge::default(),
            begun: Arc::default(),
        }
    }
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "snapshot_controller_operation_total_seconds",
            "Total number of seconds spent by the controller on an operation",
            self.seconds.clone(),
        );
        registry.register(
            "snapshot_controller_operations_in_flight",
            "Total number of operations in flight",
            self.in_flight.clone(),
        );
    }

    /// Gives each metric a sample: the reference shows its labels.
    #[cfg(test)]
    pub(crate) fn sample(&self) {
        self.begin(Of::Snapshot, Operation::Create, "", None, false);
        self.end(Of::Snapshot, Operation::Create, "");
    }

    /// Starts an operation on the object of this UID, unless it is already in progress.
    pub(super) fn begin(
        &self,
        of: Of,
        operation: Operation,
        uid: &str,
        driver: Option<&str>,
        beforehand: bool,
    ) {
        let mut begun = self.begun.lock();
        let entry = begun.entry((of, operation, uid.to_owned()));
        let known = entry.or_insert_with(|| Begun {
            at: Instant::now(),
            driver: None,
            beforehand,
        });
        if known.driver.is_none() {
            known.driver = driver.map(str::to_owned);
        }
        self.show(&begun);
    }

    /// Records the success of an operation in progress.
    pub(super) fn end(&self, of: Of, operation: Operation, uid: &str) {
        self.finish(of, operation, uid, "success");
    }

    /// Ends all operations on the object of this UID, because it is gone.
    pub(super) fn gone(&self, of: Of, uid: &str) {
        let deleted = self.finish(of, Operation::Delete, uid, "success");
        for operation in [Operation::Create, Operation::CreateAndReady] {
            if deleted {
                self.finish(of, operation, uid, "cancel");
            } else {
                self.begun.lock().remove(&(of, operation, uid.to_owned()));
            }
        }
        self.show(&self.begun.lock());
    }

    /// Forgets all operations, because another process leads now.
    pub(super) fn forget(&self) {
        self.begun.lock().clear();
        self.in_flight.set(0);
    }

    fn finish(&self, of: Of, operation: Operation, uid: &str, status: &'static str) -> bool {
        let mut begun = self.begun.lock();
        let Some(done) = begun.remove(&(of, operation, uid.to_owned())) else {
            return false;
        };
        self.show(&begun);
        let labels = Labels {
            driver_name: done.driver.unwrap_or_else(|| "unknown".to_owned()),
            operation_name: name(of, operation),
            snapshot_type: if done.beforehand {
                "pre-provisioned"
            } else {
                "dynamic"
            },
            operation_status: status,
        };
        let took = done.at.elapsed().as_secs_f64();
        self.seconds.get_or_create(&labels).observe(took);
        true
    }

    fn show(&self, begun: &HashMap<OperationKey, Begun>) {
        self.in_flight
            .set(i64::try_from(begun.len()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_s_times() {
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let text = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        let in_flight = |n: usize| format!("snapshot_controller_operations_in_flight {n}\n");
        let count = |labels: &str| {
            format!("snapshot_controller_operation_total_seconds_count{{{labels}}} 1\n")
        };
        metrics.begin(Of::Snapshot, Operation::Create, "u", None, false);
        metrics.begin(
            Of::Snapshot,
            Operation::CreateAndReady,
            "u",
            Some("d"),
            false,
        );
        tokio::time::advance(std::time::Duration::from_secs(3)).await;
        metrics.begin(Of::Snapshot, Operation::Create, "u", Some("d"), false);
        assert!(text().contains(&in_flight(2)), "{}", text());
        metrics.end(Of::Snapshot, Operation::Create, "u");
        metrics.end(Of::Snapshot, Operation::Create, "u");
        let created = "driver_name=\"d\",operation_name=\"CreateSnapshot\",\
                       snapshot_type=\"dynamic\",operation_status=\"success\"";
        assert!(text().contains(&count(created)), "{}", text());
        assert!(
            text().contains("operation_total_seconds_sum{"),
            "{}",
            text()
        );
        metrics.begin(Of::Snapshot, Operation::Delete, "u", None, true);
        metrics.gone(Of::Snapshot, "u");
        for labels in [
            "driver_name=\"d\",operation_name=\"CreateSnapshotAndReady\",\
             snapshot_type=\"dynamic\",operation_status=\"cancel\"",
            "driver_name=\"unknown\",operation_name=\"DeleteSnapshot\",\
             snapshot_type=\"pre-provisioned\",operation_status=\"success\"",
        ] {
            assert!(text().contains(&count(labels)), "{}", text());
        }
        assert!(text().contains(&in_flight(0)), "{}", text());
    }
}
