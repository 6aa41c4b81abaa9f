//! Tells the scheduler what room there is: CSIStorageCapacity objects, one for each segment of the
//! topology and each class.
//!
//! All of them are gone through at once: on a change of classes or nodes, after volumes were made
//! or deleted, and every minute, since others fill disks, too. What differs is written, and nothing
//! else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;

use crate::runtime::csi::Failure;
use crate::runtime::kube::{ApiError, Limit};
use crate::runtime::queue::{Outcome, Queue};
use crate::runtime::{Context, Kube, Watch, duration};

pub(crate) mod plan;
mod segments;

use plan::{Action, DRIVER, Item, MANAGED_BY, Room, Writer, plan};
use segments::segments;

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

    /// Tell of classes with Immediate binding, too
    #[arg(
        long,
        env = "HOSTLOOP_CAPACITY_FOR_IMMEDIATE_BINDING",
        value_name = "BOOL",
        num_args = 0..=1,
        default_value = "false",
        default_missing_value = "true"
    )]
    pub capacity_for_immediate_binding: bool,

    /// Who owns the objects: 0 the pod, 1 its owner, 2 that one's; -1 nobody
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

/// Why a pass was not finished.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Csi(#[from] Failure),
    #[error("{kind} {name} has no owner that controls it; lower --capacity-ownerref-level")]
    NoOwner { kind: String, name: String },
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
    let pod = match options.capacity_ownerref_level {
        ..0 => None,
        _ => Some(environment("POD_NAME").ok_or(Error::NoPod)?),
    };
    let limit = Limit::new(
        options.kube_api_capacity_qps,
        options.kube_api_capacity_burst,
    );
    let kube = context.kube.managed_by("hostloop-capacity").limited(limit);
    let writer = Writer::new(&context.driver.name, context.scope.node());
    let objects = watch(&context, &namespace, &writer);
    let queue = Queue::new(context.common.backoff());
    attend(&context, &objects, &queue);
    let pass = Arc::new(Pass {
        context: context.clone(),
        options,
        metrics,
        kube,
        writer,
        namespace,
        pod,
        objects,
    });
    pass.synced().await;
    let again = pass.options.capacity_poll_interval;
    context
        .work("capacity", &queue, 1, move |()| {
            let pass = pass.clone();
            async move {
                match pass.run().await {
                    Ok(()) => Outcome::Again(again),
                    Err(error) => {
                        tracing::warn!(%error, "telling what room there is");
                        Outcome::Failed
                    }
                }
            }
        })
        .await;
    Ok(())
}

/// The namespace of the objects: the pod's.
pub(crate) fn namespace() -> Option<String> {
    environment("NAMESPACE").or_else(|| environment("POD_NAMESPACE"))
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Our objects alone: those of other nodes would be many.
fn watch(context: &Context, namespace: &str, writer: &Writer) -> Watch<CSIStorageCapacity> {
    let objects = Watch::new();
    let api = Api::namespaced(context.kube.client().clone(), namespace);
    let labels = format!(
        "{DRIVER}={},{MANAGED_BY}={}",
        writer.driver, writer.managed_by
    );
    let config = watcher::Config::default().labels(&labels);
    tokio::spawn(objects.clone().run(api, config, context.stop.clone()));
    objects
}

/// Has a pass made when something changed that it goes by.
fn attend(context: &Context, objects: &Watch<CSIStorageCapacity>, queue: &Queue<()>) {
    queue.add(());
    let changed = queue.clone();
    context.caches.classes().on_change(move |_| changed.add(()));
    let changed = queue.clone();
    // Our own writes come back here; a pass that finds nothing to do costs the driver's answers.
    objects.on_change(move |change| {
        if matches!(change, crate::runtime::Change::Deleted(_)) {
            changed.add(());
        }
    });
    if context.scope.node().is_none() {
        let changed = queue.clone();
        context
            .caches
            .nodes()
            .on_change(move |_| changed.add_after((), Duration::from_secs(1)));
        let changed = queue.clone();
        context
            .caches
            .csi_nodes()
            .on_change(move |_| changed.add_after((), Duration::from_secs(1)));
    }
    let (changed, room, stop) = (queue.clone(), context.room.clone(), context.stop.clone());
    tokio::spawn(async move {
        while stop.run_until_cancelled(room.notified()).await.is_some() {
            changed.add(());
        }
    });
}

struct Pass {
    context: Context,
    options: Options,
    metrics: Metrics,
    kube: Kube,
    writer: Writer,
    namespace: String,
    pod: Option<String>,
    objects: Watch<CSIStorageCapacity>,
}

impl Pass {
    async fn synced(&self) {
        let all = async {
            self.context.caches.classes().synced().await;
            self.objects.synced().await;
            if self.context.scope.node().is_none() {
                self.context.caches.nodes().synced().await;
                self.context.caches.csi_nodes().synced().await;
            }
        };
        // Told to stop, the queue gives out nothing.
        let _ = self.context.stop.run_until_cancelled(all).await;
    }

    async fn run(&self) -> Result<(), PassError> {
        let mut wanted = BTreeMap::new();
        for item in self.items() {
            if let Some(room) = self.room(&item).await? {
                wanted.insert(item, room);
            }
        }
        let actions = plan(&wanted, &self.objects.all());
        self.count(&wanted, &actions);
        if actions.is_empty() {
            return Ok(());
        }
        let owner = self.owner().await?;
        for action in actions {
            self.perform(action, owner.as_ref()).await?;
        }
        self.count(&wanted, &plan(&wanted, &self.objects.all()));
        Ok(())
    }

    fn count(&self, wanted: &BTreeMap<Item, Room>, actions: &[Action]) {
        let of = |test: fn(&Action) -> bool| actions.iter().filter(|action| test(action)).count();
        let missing = of(|action| matches!(action, Action::Create(..)));
        self.metrics.goal.set(wanted.len() as i64);
        self.metrics
            .current
            .set((wanted.len() - missing.min(wanted.len())) as i64);
        self.metrics
            .obsolete
            .set(of(|action| matches!(action, Action::Delete(_))) as i64);
    }

    fn items(&self) -> Vec<Item> {
        let segments = segments(
            &self.context.scope,
            self.context.driver.has_topology(),
            &self.context.driver.name,
            &self.context.caches,
        );
        let classes = self.context.caches.classes().all();
        let immediate = self.options.capacity_for_immediate_binding;
        let told = classes.iter().filter(|class| {
            class.provisioner == self.context.driver.name
                && (immediate
                    || class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
        });
        let items = told.flat_map(|class| {
            segments.iter().map(|segment| Item {
                class: class.name_any(),
                segment: segment.clone(),
            })
        });
        items.collect()
    }

    /// What room the driver has; `None` for a class that is gone or that it does not take.
    async fn room(&self, item: &Item) -> Result<Option<Room>, PassError> {
        let Some(class) = self.context.caches.classes().get(&item.class) else {
            return Ok(None);
        };
        let topology = csi::Topology {
            segments: item.segment.clone(),
        };
        let request = csi::GetCapacityRequest {
            parameters: class.parameters.clone().unwrap_or_default(),
            accessible_topology: (!item.segment.is_empty()).then_some(topology),
            ..csi::GetCapacityRequest::default()
        };
        let deadline = self
            .context
            .common
            .timeout
            .unwrap_or(Duration::from_secs(10));
        match self
            .context
            .driver
            .csi
            .get_capacity(request, deadline)
            .await
        {
            Ok(answer) => Ok(Some(Room {
                available: answer.available_capacity,
                largest: answer.maximum_volume_size,
            })),
            // A class that can't be served has no room, and must not keep others from being told.
            Err(failure) if failure.code() == tonic::Code::InvalidArgument => {
                tracing::warn!(class = %item.class, %failure, "a class has no room");
                Ok(None)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn perform(
        &self,
        action: Action,
        owner: Option<&OwnerReference>,
    ) -> Result<(), ApiError> {
        match action {
            Action::Create(item, room) => {
                let object = self.writer.object(&item, room, &self.namespace, owner);
                let made = self.kube.create(&object).await?;
                self.objects.wrote(made);
            }
            Action::Update(object, room) => {
                let patch = json!({
                    "metadata": {"resourceVersion": object.metadata.resource_version},
                    "capacity": plan::quantity(room.available),
                    "maximumVolumeSize": room.largest.map(plan::quantity),
                });
                match self.kube.merge(object.as_ref(), patch).await {
                    Ok(written) => self.objects.wrote(written),
                    // The next pass sees what it has become.
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
            Action::Delete(object) => self.kube.delete(object.as_ref()).await?,
        }
        Ok(())
    }

    /// Who owns the objects, so that they go when the driver is uninstalled.
    async fn owner(&self) -> Result<Option<OwnerReference>, PassError> {
        let Some(name) = &self.pod else {
            return Ok(None);
        };
        let pod: Option<Pod> = self.kube.get(&self.namespace, name).await?;
        let Some(pod) = pod else { return Ok(None) };
        let nobody = |kind: &str, name: &str| PassError::NoOwner {
            kind: kind.into(),
            name: name.into(),
        };
        let level = self.options.capacity_ownerref_level;
        if level == 0 {
            return Ok(Some(plan::controlled_by("v1", "Pod", &pod)));
        }
        let owner = plan::controller(&pod).ok_or_else(|| nobody("Pod", name))?;
        if level == 1 {
            return Ok(Some(owner));
        }
        let set: Option<k8s_openapi::api::apps::v1::ReplicaSet> =
            self.kube.get(&self.namespace, &owner.name).await?;
        let set = set.ok_or_else(|| nobody(&owner.kind, &owner.name))?;
        let owner = plan::controller(&set).ok_or_else(|| nobody("ReplicaSet", &set.name_any()))?;
        Ok(Some(owner))
    }
}
