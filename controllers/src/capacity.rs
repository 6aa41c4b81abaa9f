//! Publishes the room for new volumes to the scheduler: one CSIStorageCapacity object for each
//! topology segment and StorageClass.
//!
//! Each pass covers all objects. A pass runs after a change of classes or nodes, and after volumes
//! and snapshots were created, expanded or deleted. It also runs every minute, since others fill
//! disks too. When many volumes change, passes are rate-limited. Only a claim rejected for lack of
//! room gets a pass at once, before another node is chosen. A pass writes only what differs. So a
//! new process takes over its predecessor's objects, and the scheduler never sees a node without
//! capacity objects.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;

use crate::api::capacity::{DRIVER, MANAGED_BY};
use crate::api::{duration, quantity};
use crate::cache::store;
use crate::cache::{Change, Store};
use crate::controller::{Context, Controller, about};
use crate::csi::Freed;
use crate::queue::{Outcome, Queue};

mod apply;
mod classes;
mod decide;
mod gather;
mod owner;
mod pass;
mod segments;

use decide::{Precision, Writer};
use owner::Owner;
use pass::Pass;

/// Minimum time between two passes for changes of room.
const PACE: Duration = Duration::from_secs(20);

/// Capacity flags of the command line.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Storage capacity")]
pub struct Options {
    /// Publish the room for volumes to the scheduler; needs the pod's namespace
    #[arg(long, value_name = "BOOL")]
    pub enable_capacity: Option<bool>,

    /// How often to check for space that something else took or freed
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse)]
    pub capacity_poll_interval: Duration,

    /// Publish room for classes with Immediate binding, too [default: true if every node has a
    /// process, because the leader then places claims by this room]
    #[arg(long, value_name = "BOOL")]
    pub capacity_for_immediate_binding: Option<bool>,

    /// Who owns the CSIStorageCapacity objects: 0 the pod, 1 the pod's owner (a DaemonSet: the
    /// objects outlive its pods), 2 that owner's owner (a Deployment); -1 no owner
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub capacity_ownerref_level: i32,

    /// Requests per second for CSIStorageCapacity objects; 0 leaves limiting to the server
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub kube_api_capacity_qps: f64,

    /// Burst of requests for CSIStorageCapacity objects after a quiet time
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub kube_api_capacity_burst: u32,
}

/// Why the capacity loop can't run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the namespace of the objects is unknown: set NAMESPACE or POD_NAMESPACE")]
    NoNamespace,
    #[error(
        "POD_NAME is not set, so the owner of the objects is unknown: set it, or use \
         --capacity-ownerref-level=-1"
    )]
    NoPod,
}

/// Gauges with the names of upstream's external-provisioner.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    goal: Gauge,
    current: Gauge,
    obsolete: Gauge,
}

impl Metrics {
    /// Registers the gauges.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        for (name, help, gauge) in [
            (
                "csistoragecapacities_desired_goal",
                "CSIStorageCapacity objects that should exist",
                &self.goal,
            ),
            (
                "csistoragecapacities_desired_current",
                "CSIStorageCapacity objects that should exist and do",
                &self.current,
            ),
            (
                "csistoragecapacities_obsolete",
                "CSIStorageCapacity objects that should not exist",
                &self.obsolete,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
    }
}

/// Runs until `context.stop`.
pub async fn run(context: Context, options: Options, metrics: Metrics) -> Result<(), Error> {
    let namespace = context
        .pod
        .capacity_namespace
        .clone()
        .ok_or(Error::NoNamespace)?;
    let owner = match u32::try_from(options.capacity_ownerref_level) {
        Err(_) => None,
        Ok(level) => {
            let pod = context.pod.name.as_ref().ok_or(Error::NoPod)?;
            Some(Owner::above(&namespace, pod, level))
        }
    };
    let writer = Writer::new(&context.driver.name, context.scope.node());
    let objects = of_ours(&context, &namespace, &writer);
    let pass = Pass::new(
        context.clone(),
        &options,
        metrics,
        namespace,
        owner,
        objects.clone(),
    );
    let (poll, queue) = (options.capacity_poll_interval, context.queue());
    queue.add(Precision::Exact);
    context.room.attend();
    let (again, of_room, freed) = (queue.clone(), queue.clone(), context.freed.clone());
    let mut controller = Controller::new(&context, Arc::new(pass))
        .after(|pass| async move { pass.synced().await })
        .feed(&context.caches.classes(), &queue, |_| [Precision::Exact])
        // The store also reports this process's own writes. Only a deletion by others needs a pass.
        .feed(&objects, &queue, move |change| {
            if is_more(change) {
                freed.announce(&Freed::Room);
            }
            matches!(change, Change::Deleted(_)).then_some(Precision::Exact)
        })
        .work("capacity", &queue, 1, move |pass, precision| {
            let again = again.clone();
            async move { reconcile(&pass, precision, poll, &again).await }
        })
        .beside(|pass| async move { follow_room(&pass.context, &of_room).await });
    if context.scope.node().is_none() {
        let (soon, driver) = (Duration::from_secs(1), context.driver.name.clone());
        controller = controller
            .feed_after(soon, &context.caches.nodes(), &queue, |change| {
                segments::moved(change).then_some(Precision::Exact)
            })
            .feed_after(soon, &context.caches.csi_nodes(), &queue, move |change| {
                segments::registered(change, &driver).then_some(Precision::Exact)
            });
    }
    controller.run().await;
    Ok(())
}

async fn reconcile(
    pass: &Pass,
    precision: Precision,
    poll: Duration,
    queue: &Queue<Precision>,
) -> Outcome {
    match (pass.run(precision).await, precision) {
        (Ok(()), Precision::Exact) => Outcome::RequeueAfter(about(poll)),
        (Ok(()), Precision::Approximate) => Outcome::Done,
        (Err(error), _) => {
            tracing::warn!(%error, "cannot update the capacity objects");
            // The backoff may exceed the polling interval, and other classes must not wait for it.
            queue.add_after(Precision::Exact, about(poll));
            Outcome::Failed
        }
    }
}

/// Watches only this writer's objects: those of other nodes may be many.
fn of_ours(context: &Context, namespace: &str, writer: &Writer) -> Store<CSIStorageCapacity> {
    let labels = format!(
        "{DRIVER}={},{MANAGED_BY}={}",
        writer.driver, writer.managed_by
    );
    watch(context, namespace, &labels)
}

/// Watches the objects of all nodes, if the namespace is known.
pub(crate) fn of_all(context: &Context) -> Option<Store<CSIStorageCapacity>> {
    let labels = format!("{DRIVER}={}", context.driver.name);
    Some(watch(
        context,
        context.pod.capacity_namespace.as_ref()?,
        &labels,
    ))
}

fn watch(context: &Context, namespace: &str, labels: &str) -> Store<CSIStorageCapacity> {
    let objects = Store::new();
    let (client, namespace) = (context.kube.client().clone(), namespace.to_owned());
    let config = store::config().labels(labels);
    let stop = context.stop.clone();
    tokio::spawn(objects.clone().run(
        client,
        move |client| Api::namespaced(client, &namespace),
        config,
        stop,
    ));
    objects
}

/// Queues a pass when the driver may have more or less room than before.
async fn follow_room(context: &Context, queue: &Queue<Precision>) {
    let mut last = None;
    loop {
        context.room.changed().await;
        let now = Instant::now();
        if context.room.takes_urgency() {
            queue.add(Precision::Exact);
            last = Some(now);
            continue;
        }
        let at = next(last, now);
        // A pass that is due earlier stays.
        queue.add_after(Precision::Approximate, at - now);
        last = Some(at);
    }
}

/// True if there is more room than was published before. Others free space on the same disk, too,
/// and a filesystem may free the space of a deleted file only some time after the deletion. So a
/// pass announces more room even if a deletion was announced before.
fn is_more(change: &Change<CSIStorageCapacity>) -> bool {
    matches!(change, Change::Applied { old: Some(old), new } if bytes(new) > bytes(old))
}

fn bytes(object: &CSIStorageCapacity) -> i64 {
    let capacity = object.capacity.as_ref();
    capacity
        .and_then(|capacity| quantity::bytes(&capacity.0))
        .unwrap_or(0)
}

/// When to run a pass for a change of room. `last` is the time of the last or the next such pass.
/// The first pass runs at once, later ones at most once per [`PACE`].
fn next(last: Option<Instant>, now: Instant) -> Instant {
    match last {
        Some(last) if last > now => last,
        Some(last) => now.max(last + PACE),
        None => now,
    }
}

#[cfg(test)]
mod tests;
