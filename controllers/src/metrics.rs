//! Metrics of the controllers, with upstream's names.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hostloop_proto::calls::{self, code_name};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tonic::Code;

use crate::queue::{Outcome, Stats};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiLabels {
    verb: &'static str,
    kind: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReceivedLabels {
    resource: String,
    verb: &'static str,
}

/// A label and its value.
type Label = [(&'static str, String); 1];

type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;
type ReadQueue = Box<dyn Fn() -> Stats + Send + Sync>;
/// Counts the objects of a cache; `None` once the cache is gone.
type CountObjects = Box<dyn Fn() -> Option<usize> + Send + Sync>;

/// A cache of one kind.
struct Cache {
    kind: String,
    scope: &'static str,
    count: CountObjects,
}

/// The metrics of a process's controllers.
pub struct Metrics {
    driver: OnceLock<String>,
    calls: Seconds<CallLabels>,
    api: Family<ApiLabels, Counter>,
    watched: Family<Label, Counter>,
    too_large: Family<Label, Counter>,
    received: Family<ReceivedLabels, Counter>,
    work: Seconds<Label>,
    retries: Family<Label, Counter>,
    events_lost: Counter,
    leads: Family<Label, Gauge>,
    queues: Mutex<Vec<(&'static str, ReadQueue)>>,
    caches: Mutex<Vec<Cache>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

fn call_histogram() -> Histogram {
    Histogram::new(calls::BUCKETS)
}

fn work_histogram() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 10.0, 8))
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            driver: OnceLock::new(),
            calls: Family::new_with_constructor(call_histogram as fn() -> Histogram),
            api: Family::default(),
            watched: Family::default(),
            too_large: Family::default(),
            received: Family::default(),
            work: Family::new_with_constructor(work_histogram as fn() -> Histogram),
            retries: Family::default(),
            events_lost: Counter::default(),
            leads: Family::default(),
            queues: Mutex::default(),
            caches: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Sets the driver's name in the metrics. Earlier calls count as those of an unknown driver.
    pub fn introduce(&self, driver: &str) {
        self.driver.get_or_init(|| driver.to_owned());
    }

    /// Registers the metrics.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        registry.register(
            "csi_sidecar_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status",
            self.calls.clone(),
        );
        registry.register(
            "hostloop_api_requests",
            "Requests to the API server, except for watches and leases",
            self.api.clone(),
        );
        registry.register(
            "hostloop_watch_events",
            "Objects that watches report, initially and after each change",
            self.watched.clone(),
        );
        registry.register(
            "hostloop_objects_too_large",
            "Objects that are too large to be kept in memory, so the controllers ignore them",
            self.too_large.clone(),
        );
        registry.register(
            "hostloop_api_received_bytes",
            "Bytes that the API server sent, including those of watches",
            self.received.clone(),
        );
        registry.register(
            "hostloop_events_lost",
            "Events that were not sent because of a full queue or an error",
            self.events_lost.clone(),
        );
        registry.register(
            "leader_election_master_status",
            "Whether this process holds the lease of that name",
            self.leads.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Time that the work on a key took",
            self.work.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Keys that were queued again because the work on them failed",
            self.retries.clone(),
        );
        registry.register_collector(Box::new(SizeCollector(self.clone())));
    }

    /// Gives each metric a sample: the reference shows its labels.
    #[cfg(test)]
    pub(crate) fn sample(&self) {
        self.csi_call("", Code::Ok, Duration::ZERO);
        self.watch_queue("", Box::new(Stats::default));
        self.watch_cache("", "", Box::new(|| Some(0)));
        self.worked("", Outcome::Failed, Duration::ZERO);
        self.leads("", true);
        self.watched("");
        self.too_large("");
        self.received("", "");
        self.api_call("", "", "");
    }

    /// Counts an answered CSI call; `method` is the full path.
    pub fn csi_call(&self, method: &'static str, code: Code, took: Duration) {
        let driver = self.driver.get().map_or("unknown-driver", String::as_str);
        let labels = CallLabels {
            driver_name: driver.to_owned(),
            method_name: method,
            grpc_status_code: code_name(code),
        };
        self.calls
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Counts an answered request to the API server. `result` is `ok` or the kind of the error.
    pub fn api_call(&self, verb: &'static str, kind: &str, result: &'static str) {
        let labels = ApiLabels {
            verb,
            kind: kind.to_owned(),
            result,
        };
        self.api.get_or_create(&labels).inc();
    }

    /// Returns the counter of objects that watches of a kind deliver.
    pub fn watched(&self, kind: &str) -> Counter {
        self.watched
            .get_or_create(&[("kind", kind.to_owned())])
            .clone()
    }

    /// Returns the counter of a kind's objects that are too large to be kept.
    pub fn too_large(&self, kind: &str) -> Counter {
        self.too_large
            .get_or_create(&[("kind", kind.to_owned())])
            .clone()
    }

    /// Returns the counter of bytes received from the API server. `verb` is `get`, `list`, `watch`
    /// or `write`.
    pub fn received(&self, resource: &str, verb: &'static str) -> Counter {
        let resource = resource.to_owned();
        let labels = ReceivedLabels { resource, verb };
        self.received.get_or_create(&labels).clone()
    }

    /// Adds a queue to the metrics.
    pub fn watch_queue(&self, name: &'static str, read: ReadQueue) {
        let mut queues = self.queues.lock();
        // A controller that restarts, as after losing and regaining the lead, has a new queue.
        queues.retain(|(known, _)| *known != name);
        queues.push((name, read));
    }

    /// Adds a cache of a kind to the metrics. `scope` tells it from another one of the same kind.
    pub(crate) fn watch_cache(&self, kind: &str, scope: &'static str, count: CountObjects) {
        let mut caches = self.caches.lock();
        // A cache that begins again, as after losing and regaining the lead, is a new one.
        caches.retain(|known| known.kind != kind || known.scope != scope);
        caches.push(Cache {
            kind: kind.to_owned(),
            scope,
            count,
        });
    }

    /// The caches, each with its kind, its scope and the number of its objects.
    fn cached_objects(&self) -> Vec<(String, &'static str, usize)> {
        let mut caches = self.caches.lock();
        let mut counted = Vec::new();
        caches.retain(|cache| {
            let count = (cache.count)();
            counted.extend(count.map(|count| (cache.kind.clone(), cache.scope, count)));
            count.is_some()
        });
        counted
    }

    /// The statistics of all queues together.
    #[cfg(test)]
    pub(crate) fn all_queues(&self) -> Stats {
        let queues = self.queues.lock();
        queues.iter().fold(Stats::default(), |sum, (_, read)| {
            let Stats { ready, adds } = read();
            Stats {
                ready: sum.ready + ready,
                adds: sum.adds + adds,
            }
        })
    }

    /// Counts a key that was worked on, with its outcome and duration.
    pub fn worked(&self, queue: &'static str, outcome: Outcome, took: Duration) {
        let labels = [("name", queue.to_owned())];
        self.work.get_or_create(&labels).observe(took.as_secs_f64());
        if matches!(outcome, Outcome::Failed | Outcome::RetryAfter(_)) {
            self.retries.get_or_create(&labels).inc();
        }
    }

    /// Counts an event that was not sent.
    pub fn event_lost(&self) {
        self.events_lost.inc();
    }

    /// The number of events that were not sent.
    #[cfg(test)]
    pub(crate) fn lost_events(&self) -> u64 {
        self.events_lost.get()
    }

    /// Records whether a lease is held.
    pub fn leads(&self, lease: &str, leads: bool) {
        self.leads
            .get_or_create(&[("name", lease.to_owned())])
            .set(leads.into());
    }
}

/// Reads the sizes of queues and caches on each scrape.
#[derive(Debug)]
struct SizeCollector(Arc<Metrics>);

impl Collector for SizeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let queues = self.0.queues.lock();
        let read: Vec<_> = queues.iter().map(|(name, read)| (*name, read())).collect();
        drop(queues);
        let depths = read
            .iter()
            .map(|(name, stats)| ([("name", *name)], ConstGauge::new(stats.ready as i64)));
        encode(
            &mut encoder,
            "workqueue_depth",
            "Keys that wait to be worked on",
            depths,
        )?;
        let adds = read
            .iter()
            .map(|(name, stats)| ([("name", *name)], ConstCounter::new(stats.adds)));
        encode(&mut encoder, "workqueue_adds", "Keys that were added", adds)?;
        let counted = self.0.cached_objects();
        let cached = counted.iter().map(|(kind, scope, count)| {
            let labels = [("kind", kind.as_str()), ("scope", *scope)];
            (labels, ConstGauge::new(*count as i64))
        });
        encode(
            &mut encoder,
            "hostloop_cached_objects",
            "Objects in a cache: one for the process's own work, or one for the whole cluster",
            cached,
        )
    }
}

fn encode<L: EncodeLabelSet, M: EncodeMetric + prometheus_client::metrics::TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (L, M)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, M::TYPE)?;
    for (labels, value) in values {
        value.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn dashboards_find_what_they_know() {
        let metrics = Arc::new(Metrics::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.csi_call(
            "/csi.v1.Identity/Probe",
            Code::Unavailable,
            Duration::from_millis(50),
        );
        metrics.introduce("d.example");
        metrics.csi_call(
            "/csi.v1.Controller/CreateVolume",
            Code::Ok,
            Duration::from_secs(2),
        );
        metrics.watch_queue("claims", Box::new(|| Stats { ready: 3, adds: 9 }));
        metrics.watch_cache("Pod", "process", Box::new(|| Some(1)));
        metrics.watch_cache("Pod", "process", Box::new(|| Some(7)));
        metrics.watch_cache("Pod", "cluster", Box::new(|| None));
        metrics.worked("claims", Outcome::Failed, Duration::from_millis(1));
        metrics.leads("d-example", true);
        metrics.event_lost();
        metrics.watched("Pod").inc_by(2);
        metrics.too_large("Pod").inc();
        metrics.received("pods", "watch").inc_by(99);
        metrics.api_call("patch", "PersistentVolume", "ok");
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        for line in [
            "csi_sidecar_operations_seconds_bucket{le=\"0.1\",driver_name=\"unknown-driver\",\
             method_name=\"/csi.v1.Identity/Probe\",grpc_status_code=\"Unavailable\"} 1",
            "csi_sidecar_operations_seconds_count{driver_name=\"d.example\",\
             method_name=\"/csi.v1.Controller/CreateVolume\",grpc_status_code=\"OK\"} 1",
            "workqueue_depth{name=\"claims\"} 3",
            "hostloop_cached_objects{kind=\"Pod\",scope=\"process\"} 7",
            "hostloop_objects_too_large_total{kind=\"Pod\"} 1",
            "workqueue_adds_total{name=\"claims\"} 9",
            "workqueue_retries_total{name=\"claims\"} 1",
            "leader_election_master_status{name=\"d-example\"} 1",
            "hostloop_watch_events_total{kind=\"Pod\"} 2",
            "hostloop_api_received_bytes_total{resource=\"pods\",verb=\"watch\"} 99",
            "hostloop_events_lost_total 1",
            "hostloop_api_requests_total{verb=\"patch\",kind=\"PersistentVolume\",result=\"ok\"} 1",
        ] {
            assert!(
                text.lines().any(|known| known == line),
                "{line} is not in\n{text}"
            );
        }
        let gone = "hostloop_cached_objects{kind=\"Pod\",scope=\"cluster\"}";
        assert!(!text.contains(gone), "{text}");
    }
}
