//! The metrics of the driver: a histogram of RPCs, and gauges of the pools.
//!
//! The histogram is `csi_plugin_operations_seconds`. It has the labels and buckets of the CSI
//! sidecars' `csi_sidecar_operations_seconds`, so a dashboard for these only needs the other name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::calls::{BUCKETS, code_name};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

use crate::csi::int64;
use crate::pool_faults::PoolFaultCount;
use crate::rpc_faults::FaultCount;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    driver_name: Arc<String>,
    method_name: &'static str,
    grpc_status_code: &'static str,
}

/// The histogram of all answered RPCs, and what no RPC carries.
pub struct Calls {
    driver_name: Arc<String>,
    seconds: Family<CallLabels, Histogram, fn() -> Histogram>,
    /// Cuts that explorations have taken.
    cuts: Counter,
    registry: Registry,
}

impl Calls {
    /// Creates an empty histogram with the driver's name as a label.
    pub fn new(driver_name: &str) -> Self {
        let seconds = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> _);
        let mut registry = Registry::default();
        registry.register(
            "csi_plugin_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status",
            seconds.clone(),
        );
        let cuts = Counter::default();
        let help = "Cuts that explorations have taken";
        registry.register("hostloop_cuts_taken", help, cuts.clone());
        Calls {
            driver_name: Arc::new(driver_name.to_owned()),
            seconds,
            cuts,
            registry,
        }
    }

    /// Counts one answered RPC.
    pub(crate) fn observe(&self, method: &'static str, code: Code, took: Duration) {
        let labels = CallLabels {
            driver_name: self.driver_name.clone(),
            method_name: method,
            grpc_status_code: code_name(code),
        };
        self.seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Counts a cut that was taken.
    pub(crate) fn count_cut(&self) {
        self.cuts.inc();
    }
}

/// The current figures of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolGauges {
    /// The pool's name.
    pub name: String,
    /// True if the pool responds. Otherwise, the fields below are not reported.
    pub up: bool,
    /// Size of the pool's filesystem, in bytes.
    pub size_bytes: u64,
    /// Free space of that filesystem, in bytes.
    pub free_bytes: u64,
    /// Space available to new thin volumes, in bytes.
    pub available_bytes: u64,
    /// Number of volumes, if they can be counted.
    pub volumes: Option<u64>,
    /// Number of snapshots, if they can be counted.
    pub snapshots: Option<u64>,
    /// Number of those that are cuts of explorations, if they can be counted.
    pub cuts: Option<u64>,
    /// Number of deleted snapshots that keep their images, if they can be counted.
    pub deleted_bases: Option<u64>,
    /// Bytes that the pool could promise more without these images, if they can be counted.
    pub deleted_base_bytes: Option<u64>,
}

/// One gauge: its name, its help text, and a function that reads it from a pool that is up.
type PoolGauge = (&'static str, &'static str, fn(&PoolGauges) -> Option<u64>);

const POOL_GAUGES: [PoolGauge; 8] = [
    (
        "hostloop_pool_size_bytes",
        "Size of the filesystem the pool is on",
        |p| Some(p.size_bytes),
    ),
    (
        "hostloop_pool_free_bytes",
        "Free space of the pool, on its filesystem and the disks below",
        |p| Some(p.free_bytes),
    ),
    (
        "hostloop_pool_available_bytes",
        "What the pool can promise to new volumes",
        |p| Some(p.available_bytes),
    ),
    ("hostloop_pool_volumes", "Volumes in the pool", |p| {
        p.volumes
    }),
    ("hostloop_pool_snapshots", "Snapshots in the pool", |p| {
        p.snapshots
    }),
    (
        "hostloop_pool_cuts",
        "Snapshots in the pool that are cuts of explorations",
        |p| p.cuts,
    ),
    (
        "hostloop_pool_deleted_bases",
        "Deleted snapshots that keep their images for later deltas",
        |p| p.deleted_bases,
    ),
    (
        "hostloop_pool_deleted_base_bytes",
        "What the pool could promise more without these images",
        |p| p.deleted_base_bytes,
    ),
];

type PoolLabels = [(&'static str, String); 1];

/// Writes the driver's part of `/metrics`, in OpenMetrics text without the end marker.
pub(crate) fn render(text: &mut String, calls: &Calls, pools: &[PoolGauges]) -> fmt::Result {
    encode_registry(text, &calls.registry)?;
    encode_registry(text, &pool_registry(pools))
}

/// Writes the number of events that `--otlp-endpoint` did not get.
pub(crate) fn render_dropped(text: &mut String, events: u64) -> fmt::Result {
    let counter = Counter::<u64>::default();
    counter.inc_by(events);
    let mut registry = Registry::default();
    let help = "Events that were not sent to the collector of spans";
    registry.register("hostloop_otlp_events_dropped", help, counter);
    encode_registry(text, &registry)
}

type FaultLabels = [(&'static str, String); 2];

/// Writes how many calls the rules of `--fault-rules` have had an effect on.
pub(crate) fn render_faults(text: &mut String, counts: &[FaultCount]) -> fmt::Result {
    let family = Family::<FaultLabels, Counter>::default();
    for count in counts {
        let labels = [
            ("rule", count.rule.clone()),
            ("effect", count.effect.to_owned()),
        ];
        family.get_or_create(&labels).inc_by(count.calls);
    }
    let mut registry = Registry::default();
    let help = "Calls that a fault rule delayed, refused, or hid the answer of";
    registry.register("hostloop_rpc_faults", help, family);
    encode_registry(text, &registry)
}

type PoolFaultLabels = [(&'static str, String); 3];

/// Writes how often the faults of pools have come into their states.
pub(crate) fn render_pool_faults(text: &mut String, counts: &[PoolFaultCount]) -> fmt::Result {
    let family = Family::<PoolFaultLabels, Counter>::default();
    for count in counts {
        let labels = [
            ("pool", count.pool.clone()),
            ("fault", count.fault.to_owned()),
            ("state", count.state.word().to_owned()),
        ];
        family.get_or_create(&labels).inc_by(count.times);
    }
    let mut registry = Registry::default();
    let help = "Changes of the faults that administrators ask for, by pool, fault and new state";
    registry.register("hostloop_pool_faults", help, family);
    encode_registry(text, &registry)
}

/// Builds a new registry for each scrape, so that the gauges of a removed pool disappear.
fn pool_registry(pools: &[PoolGauges]) -> Registry {
    let mut registry = Registry::default();
    let up = gauge_of(pools, |pool| Some(u64::from(pool.up)));
    registry.register("hostloop_pool_up", "Whether the pool answers", up);
    for (name, help, value) in POOL_GAUGES {
        let gauge = gauge_of(pools, |pool| value(pool).filter(|_| pool.up));
        registry.register(name, help, gauge);
    }
    registry
}

/// A gauge of the pools that have this value.
fn gauge_of(
    pools: &[PoolGauges],
    value: impl Fn(&PoolGauges) -> Option<u64>,
) -> Family<PoolLabels, Gauge> {
    let gauge = Family::<PoolLabels, Gauge>::default();
    for pool in pools {
        if let Some(value) = value(pool) {
            let labels = [("pool", pool.name.clone())];
            gauge.get_or_create(&labels).set(int64(value));
        }
    }
    gauge
}

#[cfg(test)]
mod tests {
    use hostloop_report::node_faults::PoolFaultState;

    use super::*;

    #[test]
    fn the_reference_has_every_metric() {
        let calls = Calls::new("hostloop.csi.dev");
        calls.observe("/csi.v1.Identity/Probe", Code::Ok, Duration::ZERO);
        let pool = PoolGauges {
            name: "default".into(),
            up: true,
            volumes: Some(0),
            snapshots: Some(0),
            cuts: Some(0),
            deleted_bases: Some(0),
            deleted_base_bytes: Some(0),
            ..PoolGauges::default()
        };
        let mut text = String::new();
        render(&mut text, &calls, &[pool]).unwrap();
        render_dropped(&mut text, 0).unwrap();
        render_faults(&mut text, &[fault("full", "refused", 1)]).unwrap();
        render_pool_faults(&mut text, &[pool_fault()]).unwrap();
        hostloop_document::check_named_table(
            "docs/reference/metrics.md",
            "driver",
            &hostloop_document::metrics::metrics_table(&text),
            "driver/src/grpc/metrics.rs",
        );
    }

    fn fault(rule: &str, effect: &'static str, calls: u64) -> FaultCount {
        FaultCount {
            rule: rule.to_owned(),
            effect,
            calls,
        }
    }

    fn pool_fault() -> PoolFaultCount {
        PoolFaultCount {
            pool: "default".to_owned(),
            fault: "full",
            state: PoolFaultState::Active,
            times: 2,
        }
    }

    #[test]
    fn faults_of_pools_are_counted_by_state() {
        let mut text = String::new();
        render_pool_faults(&mut text, &[pool_fault()]).unwrap();
        let line = "hostloop_pool_faults_total{pool=\"default\",fault=\"full\",state=\"active\"} 2";
        assert!(text.lines().any(|l| l == line), "no {line:?} in\n{text}");
    }

    #[test]
    fn faults_are_counted_by_rule_and_effect() {
        let mut text = String::new();
        let counts = [fault("full", "refused", 3), fault("gone", "lost", 1)];
        render_faults(&mut text, &counts).unwrap();
        for line in [
            "hostloop_rpc_faults_total{rule=\"full\",effect=\"refused\"} 3",
            "hostloop_rpc_faults_total{rule=\"gone\",effect=\"lost\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line:?} in\n{text}");
        }
    }

    #[test]
    fn calls_and_pools_are_shown() {
        let calls = Calls::new("hostloop.csi.dev");
        let method = "/csi.v1.Controller/CreateVolume";
        calls.observe(method, Code::Ok, Duration::from_millis(200));
        calls.observe(method, Code::DeadlineExceeded, Duration::from_secs(11));
        let pools = [
            PoolGauges {
                name: "fast".into(),
                up: true,
                size_bytes: 100,
                free_bytes: 60,
                available_bytes: 50,
                volumes: Some(2),
                snapshots: Some(1),
                cuts: Some(1),
                deleted_bases: Some(3),
                deleted_base_bytes: Some(40),
            },
            PoolGauges {
                name: "gone".into(),
                ..PoolGauges::default()
            },
        ];
        let mut text = String::new();
        render(&mut text, &calls, &pools).unwrap();
        let labels = |code: &str| {
            let method = format!("method_name=\"{method}\",grpc_status_code=\"{code}\"");
            format!("driver_name=\"hostloop.csi.dev\",{method}}}")
        };
        let (ok, late) = (labels("OK"), labels("DeadlineExceeded"));
        for (name, rest) in [
            ("csi_plugin_operations_seconds_count", format!("{ok} 1")),
            ("csi_plugin_operations_seconds_sum", format!("{ok} 0.2")),
            (
                "csi_plugin_operations_seconds_bucket",
                format!("le=\"10.0\",{late} 0"),
            ),
            (
                "csi_plugin_operations_seconds_bucket",
                format!("le=\"15.0\",{late} 1"),
            ),
            ("hostloop_pool_up", "pool=\"fast\"} 1".to_owned()),
            ("hostloop_pool_size_bytes", "pool=\"fast\"} 100".to_owned()),
            ("hostloop_pool_free_bytes", "pool=\"fast\"} 60".to_owned()),
            (
                "hostloop_pool_available_bytes",
                "pool=\"fast\"} 50".to_owned(),
            ),
            ("hostloop_pool_volumes", "pool=\"fast\"} 2".to_owned()),
            ("hostloop_pool_snapshots", "pool=\"fast\"} 1".to_owned()),
            ("hostloop_pool_cuts", "pool=\"fast\"} 1".to_owned()),
            ("hostloop_pool_deleted_bases", "pool=\"fast\"} 3".to_owned()),
            (
                "hostloop_pool_deleted_base_bytes",
                "pool=\"fast\"} 40".to_owned(),
            ),
            ("hostloop_pool_up", "pool=\"gone\"} 0".to_owned()),
        ] {
            let line = format!("{name}{{{rest}");
            assert!(text.lines().any(|l| l == line), "no {line:?} in\n{text}");
        }
        assert!(
            !text.contains("hostloop_pool_volumes{pool=\"gone\"}"),
            "{text}"
        );
    }

    #[test]
    fn dropped_events_are_counted() {
        let mut text = String::new();
        render_dropped(&mut text, 7).unwrap();
        assert!(
            text.contains("\nhostloop_otlp_events_dropped_total 7\n"),
            "{text}"
        );
    }

    #[test]
    fn a_method_without_calls_has_no_metric() {
        let mut text = String::new();
        render(&mut text, &Calls::new("d"), &[]).unwrap();
        assert!(!text.contains("method_name"), "{text}");
    }
}
