//! Tells the scheduler what room there is: CSIStorageCapacity objects, one for each segment of the
//! topology and each class.
//!
//! All of them are gone through at once: on a change of classes or nodes, after volumes and
//! snapshots were made, grown or deleted, and every minute, since others fill disks, too. In a storm
//! of volumes they are not gone through for each; where a claim was refused for want of room, they
//! are, before another node is chosen. What differs is written, and nothing else: a new process takes
//! over what its predecessor wrote, and the scheduler never looks at a node that has no room told.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;

use crate::runtime::queue::{Outcome, Queue};
use crate::runtime::{Change, Context, Watch, boolean, duration, watch};

mod owner;
mod pass;
pub(crate) mod plan;
mod segments;

use owner::Owner;
use pass::Pass;
use plan::{DRIVER, Look, MANAGED_BY, Writer};

/// How soon after a change of the room that was looked at the next one is.
const PACE: Duration = Duration::from_secs(20);

/// What the capacity loop takes from the command line.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Storage capacity")]
pub struct Options {
    /// Tell the scheduler what room there is; needs the pod's namespace
    #[arg(
        long,
        env = "HOSTLOOP_ENABLE_CAPACITY",
        value_name = "BOOL",
        value_parser = boolean::parse,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub enable_capacity: Option<bool>,

    /// How often room is looked for that others took or left
    #[arg(
        long,
        env = "HOSTLOOP_CAPACITY_POLL_INTERVAL",
        value_name = "DURATION",
        default_value = "1m",
        value_parser = duration::parse
    )]
    pub capacity_poll_interval: Duration,

    /// Tell of classes with Immediate binding, too [default: where every node has a process:
    /// claims are assigned to nodes by it]
    #[arg(
        long,
        env = "HOSTLOOP_CAPACITY_FOR_IMMEDIATE_BINDING",
        value_name = "BOOL",
        value_parser = boolean::parse,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub capacity_for_immediate_binding: Option<bool>,

    /// Who owns the objects: 0 the pod, 1 its owner (a DaemonSet: the objects outlive its pods), 2
    /// that one's (a Deployment); -1 nobody
    #[arg(
        long,
        env = "HOSTLOOP_CAPACITY_OWNERREF_LEVEL",
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub capacity_ownerref_level: i32,

    /// Requests a second for these objects; 0 leaves limiting to the server
    #[arg(
        long,
        env = "HOSTLOOP_KUBE_API_CAPACITY_QPS",
        value_name = "N",
        default_value_t = 1.0
    )]
    pub kube_api_capacity_qps: f64,

    /// Requests at once after a quiet time
    #[arg(
        long,
        env = "HOSTLOOP_KUBE_API_CAPACITY_BURST",
        value_name = "N",
        default_value_t = 5
    )]
    pub kube_api_capacity_burst: u32,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace of the objects is not known.
    #[error("the environment says neither NAMESPACE nor POD_NAMESPACE, where objects are to be")]
    NoNamespace,
    /// The pod is not known.
    #[error(
        "the environment does not say POD_NAME, whose owner is to own the objects; \
             --capacity-ownerref-level=-1 does without"
    )]
    NoPod,
}

/// What is counted of it, by upstream's names.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    goal: Gauge,
    current: Gauge,
    obsolete: Gauge,
}

impl Metrics {
    /// Has it shown.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        for (name, help, gauge) in [
            (
                "csistoragecapacities_desired_goal",
                "Objects there should be",
                &self.goal,
            ),
            (
                "csistoragecapacities_desired_current",
                "Of these, that there are",
                &self.current,
            ),
            (
                "csistoragecapacities_obsolete",
                "Objects there should not be",
                &self.obsolete,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
    }
}

/// Runs until it is told to stop.
pub async fn run(context: Context, options: Options, metrics: Metrics) -> Result<(), Error> {
    let namespace = namespace().ok_or(Error::NoNamespace)?;
    let owner = match u32::try_from(options.capacity_ownerref_level) {
        Err(_) => Owner::nobody(),
        Ok(level) => {
            let pod = environment("POD_NAME").ok_or(Error::NoPod)?;
            Owner::above(&namespace, &pod, level)
        }
    };
    let writer = Writer::new(&context.driver.name, context.scope.node());
    let objects = of_ours(&context, &namespace, &writer);
    let queue = Queue::new(context.common.backoff());
    attend(&context, &objects, &queue);
    let poll = options.capacity_poll_interval;
    let pass = Pass::new(
        context.clone(),
        &options,
        metrics,
        namespace,
        owner,
        objects,
    );
    let pass = Arc::new(pass);
    pass.synced().await;
    let again = queue.clone();
    context
        .work("capacity", &queue, 1, move |look| {
            let (pass, again) = (pass.clone(), again.clone());
            async move {
                match (pass.run(look).await, look) {
                    (Ok(()), Look::Close) => Outcome::Again(about(poll)),
                    (Ok(()), Look::Rough) => Outcome::Done,
                    (Err(error), _) => {
                        tracing::warn!(%error, "telling what room there is");
                        // The backoff may exceed the polling interval, and other classes must not
                        // wait for it.
                        again.add_after(Look::Close, about(poll));
                        Outcome::Failed
                    }
                }
            }
        })
        .await;
    Ok(())
}

/// An interval, give or take a tenth: nodes that began together are not to go on together.
fn about(interval: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32;
    let part = f64::from(random) / f64::from(u32::MAX);
    interval.mul_f64(0.9 + 0.2 * part)
}

/// The namespace of the objects: the pod's.
pub(crate) fn namespace() -> Option<String> {
    environment("NAMESPACE").or_else(|| environment("POD_NAMESPACE"))
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Our objects alone: those of other nodes would be many.
fn of_ours(context: &Context, namespace: &str, writer: &Writer) -> Watch<CSIStorageCapacity> {
    let labels = format!(
        "{DRIVER}={},{MANAGED_BY}={}",
        writer.driver, writer.managed_by
    );
    watch(context, namespace, &labels)
}

/// The objects of all nodes, if it is known where they are.
pub(crate) fn of_all(context: &Context) -> Option<Watch<CSIStorageCapacity>> {
    let labels = format!("{DRIVER}={}", context.driver.name);
    Some(watch(context, &namespace()?, &labels))
}

fn watch(context: &Context, namespace: &str, labels: &str) -> Watch<CSIStorageCapacity> {
    let objects = Watch::new();
    let (client, namespace) = (context.kube.client().clone(), namespace.to_owned());
    let api = move |client| Api::namespaced(client, &namespace);
    let config = watch::config().labels(labels);
    let stop = context.stop.clone();
    tokio::spawn(objects.clone().run(client, api, config, stop));
    objects
}

/// Has a pass made when something changed that it goes by.
fn attend(context: &Context, objects: &Watch<CSIStorageCapacity>, queue: &Queue<Look>) {
    queue.add(Look::Close);
    let changed = queue.clone();
    context
        .caches
        .classes()
        .on_change(move |_| changed.add(Look::Close));
    let changed = queue.clone();
    // Our own writes come back here, and are no news; what others deleted is made again.
    objects.on_change(move |change| {
        if matches!(change, Change::Deleted(_)) {
            changed.add(Look::Close);
        }
    });
    if context.scope.node().is_none() {
        let changed = queue.clone();
        context.caches.nodes().on_change(move |change| {
            if segments::moved(change) {
                changed.add_after(Look::Close, Duration::from_secs(1));
            }
        });
        let (changed, driver) = (queue.clone(), context.driver.name.clone());
        context.caches.csi_nodes().on_change(move |change| {
            if segments::registered(change, &driver) {
                changed.add_after(Look::Close, Duration::from_secs(1));
            }
        });
    }
    context.room.attend();
    let (changed, room, stop) = (queue.clone(), context.room.clone(), context.stop.clone());
    tokio::spawn(async move {
        let mut last = None;
        while stop.run_until_cancelled(room.changed()).await.is_some() {
            let now = Instant::now();
            if room.takes_urgency() {
                changed.add(Look::Close);
                last = Some(now);
                continue;
            }
            let at = next(last, now);
            // One that is to be made before stays.
            changed.add_after(Look::Rough, at - now);
            last = Some(at);
        }
    });
}

/// When a pass is made for a change of the room, if the last was, or will be, made then: at once,
/// but not for every volume of many.
fn next(last: Option<Instant>, now: Instant) -> Instant {
    match last {
        Some(last) if last > now => last,
        Some(last) => now.max(last + PACE),
        None => now,
    }
}

#[cfg(test)]
mod tests;
