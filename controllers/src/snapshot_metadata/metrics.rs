//! Metrics of the calls of backup tools, with the name of external-snapshot-metadata's. Names of
//! snapshots are not among the labels: users make as many as they like.

use hostloop_proto::calls::{BUCKETS, code_name};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tonic::Code;

/// A method of the service, as upstream's metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Allocated,
    Delta,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::Allocated => "MetadataAllocated",
            Method::Delta => "MetadataDelta",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: &'static str,
}

/// The durations of calls, to the ends of their streams.
#[derive(Clone, Debug)]
pub struct Metrics {
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            seconds: Family::new_with_constructor(histogram as fn() -> Histogram),
        }
    }
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "snapshot_metadata_controller_operations_seconds",
            "Duration of calls for changed blocks to the end of their streams, with their gRPC code",
            self.seconds.clone(),
        );
    }

    /// Gives each metric a sample: the reference shows its labels.
    #[cfg(test)]
    pub(crate) fn sample(&self) {
        self.begin("", Method::Allocated).end(Code::Ok);
    }

    /// Begins a call.
    pub(super) fn begin(&self, driver: &str, method: Method) -> RunningCall {
        RunningCall {
            metrics: self.clone(),
            driver: driver.to_owned(),
            method,
            began: Instant::now(),
            code: Code::Cancelled,
        }
    }
}

/// A call that is counted at its end. Without another code, its caller has hung up.
#[derive(Debug)]
pub(super) struct RunningCall {
    metrics: Metrics,
    driver: String,
    method: Method,
    began: Instant,
    code: Code,
}

impl RunningCall {
    /// Ends the call with this code.
    pub(super) fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let labels = Labels {
            driver_name: std::mem::take(&mut self.driver),
            method_name: self.method.name(),
            grpc_status_code: code_name(self.code),
        };
        let took = self.began.elapsed().as_secs_f64();
        self.metrics.seconds.get_or_create(&labels).observe(took);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    /// How many calls of a method had this code.
    pub(in crate::snapshot_metadata) fn count(
        metrics: &Metrics,
        driver: &str,
        method: Method,
        code: &str,
    ) -> u64 {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let line = format!(
            "snapshot_metadata_controller_operations_seconds_count{{driver_name=\"{driver}\",\
             method_name=\"{}\",grpc_status_code=\"{code}\"}} ",
            method.name()
        );
        let counts = text.lines().filter_map(|one| one.strip_prefix(&*line));
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    }

    #[test]
    fn calls_are_counted_once_by_method_and_code() {
        let metrics = Metrics::default();
        for code in [Code::Ok, Code::NotFound, Code::NotFound] {
            metrics.begin("d", Method::Allocated).end(code);
        }
        drop(metrics.begin("d", Method::Delta));
        for (method, code, expected) in [
            (Method::Allocated, "OK", 1),
            (Method::Allocated, "NotFound", 2),
            (Method::Allocated, "Canceled", 0),
            (Method::Delta, "OK", 0),
            (Method::Delta, "Canceled", 1),
        ] {
            let found = count(&metrics, "d", method, code);
            assert_eq!(found, expected, "{method:?} {code}");
        }
    }
}
