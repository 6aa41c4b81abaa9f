//! One pass over all capacity objects: asks the driver for its room, then writes what changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::ResourceExt;
use parking_lot::Mutex;

use super::decide::{Item, Marks, Precision, Room, Step, Wanted, Writer, decide};
use super::owner::{Owner, OwnerError};
use super::segments::segments;
use super::{Metrics, Options};
use crate::api::pvc;
use crate::cache::Store;
use crate::client::kube::{ApiError, Limit};
use crate::client::{EventKind, Kube, unless_gone};
use crate::controller::Context;
use crate::csi::Failure;

/// Default timeout of a GetCapacity call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The reason of the event for a class with parameters that the driver refuses.
const REFUSED: &str = "CapacityUnknown";

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PassError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("StorageClass {class}: {failure}")]
    Csi { class: String, failure: Failure },
    #[error("cannot find the owner of the capacity objects: {0}")]
    Owner(#[from] OwnerError),
}

/// Dependencies and state of the passes.
pub(super) struct Pass {
    pub(super) context: Context,
    metrics: Metrics,
    /// Also publish room for classes with Immediate binding.
    immediate: bool,
    /// API client with a rate limit of its own.
    kube: Kube,
    writer: Writer,
    namespace: String,
    owner: Option<Owner>,
    objects: Store<CSIStorageCapacity>,
    /// Classes that the driver refused, by UID, with the reported message.
    refused: Mutex<BTreeMap<String, String>>,
    /// For each class without an answer: the index of the segment that the next pass asks for
    /// first.
    first: Mutex<BTreeMap<String, usize>>,
}

impl Pass {
    pub(super) fn new(
        context: Context,
        options: &Options,
        metrics: Metrics,
        namespace: String,
        owner: Option<Owner>,
        objects: Store<CSIStorageCapacity>,
    ) -> Self {
        let limit = Limit::new(
            options.kube_api_capacity_qps,
            options.kube_api_capacity_burst,
        );
        let on_nodes = context.scope.node().is_some();
        Pass {
            immediate: options.capacity_for_immediate_binding.unwrap_or(on_nodes),
            kube: context.kube.managed_by("hostloop-capacity").limited(limit),
            writer: Writer::new(&context.driver.name, context.scope.node()),
            context,
            metrics,
            namespace,
            owner,
            objects,
            refused: Mutex::default(),
            first: Mutex::default(),
        }
    }

    /// Waits until all caches that decisions depend on are synced. Otherwise a pass would create an
    /// object twice, or delete a valid one.
    pub(super) async fn synced(&self) {
        self.context.caches.classes().synced().await;
        self.objects.synced().await;
        if self.context.scope.node().is_none() {
            self.context.caches.nodes().synced().await;
            self.context.caches.csi_nodes().synced().await;
        }
    }

    /// Runs a pass. An error for one object does not stop the others, except if the API server
    /// fails.
    pub(super) async fn run(&self, look: Precision) -> Result<(), PassError> {
        let changes = self.context.room.changes();
        let mut trouble = None;
        let wanted = self.wanted(&mut trouble).await;
        let marks = self.marks().await?;
        let steps = decide(&wanted, &self.objects.all(), &marks, look);
        self.count(&wanted, &steps);
        if !steps.is_empty() {
            for step in steps {
                if !self.context.acts() {
                    return Ok(());
                }
                match self.perform(step, &marks).await {
                    Ok(()) => {}
                    // The API server is unavailable, so the other writes would fail too.
                    Err(error @ (ApiError::Timeout { .. } | ApiError::Failed { .. })) => {
                        return Err(error.into());
                    }
                    Err(error) => trouble = Some(error.into()),
                }
            }
            let left = decide(&wanted, &self.objects.all(), &marks, look);
            self.count(&wanted, &left);
        }
        // A class without an answer does not hold back the capacity of the others.
        if look == Precision::Exact && !matches!(trouble, Some(PassError::Api(_))) {
            self.context.room.published(changes);
        }
        trouble.map_or(Ok(()), Err)
    }

    fn count(&self, wanted: &Wanted, steps: &[Step]) {
        let there = self.objects.all();
        let published = wanted
            .keys()
            .filter(|item| there.iter().any(|object| item.is_of(object)))
            .count();
        let obsolete = steps.iter();
        let obsolete = obsolete.filter(|step| matches!(step, Step::Delete(_)));
        self.metrics.goal.set(wanted.len() as i64);
        self.metrics.current.set(published as i64);
        self.metrics.obsolete.set(obsolete.count() as i64);
    }

    /// The owner and the pools that the objects should carry.
    async fn marks(&self) -> Result<Marks, OwnerError> {
        let mut pools = self.context.pools.known();
        pools.sort();
        // This client has no rate limit: the owner is looked up only once.
        let owner = match &self.owner {
            Some(owner) => Some(owner.get(&self.context.kube).await?.clone()),
            None => None,
        };
        Ok(Marks {
            owner,
            pools: (!pools.is_empty()).then(|| pools.join(",")),
        })
    }

    /// The wanted objects, with the room from the driver. `trouble` gets the last error.
    async fn wanted(&self, trouble: &mut Option<PassError>) -> Wanted {
        let segments = segments(
            &self.context.scope,
            self.context.driver.has_topology(),
            &self.context.driver.name,
            &self.context.caches,
        );
        let mut wanted = Wanted::new();
        for class in self.classes() {
            let mut silent = false;
            let first = self.first(&class);
            let in_turn = segments.iter().cycle().skip(first).take(segments.len());
            for (turn, segment) in in_turn.enumerate() {
                let item = Item {
                    class: class.name_any(),
                    segment: segment.clone(),
                };
                if silent {
                    // Every further call may time out as well, and other classes wait.
                    wanted.insert(item, None);
                    continue;
                }
                match self.ask(&class, &item).await {
                    Ok(room) => {
                        wanted.insert(item, Some(room));
                    }
                    // The driver can't make volumes of this class anywhere, so the class gets no
                    // object.
                    Err(failure) if failure.code() == tonic::Code::InvalidArgument => {
                        self.complain(&class, &failure);
                    }
                    Err(failure) => {
                        silent = failure.code() == tonic::Code::DeadlineExceeded;
                        if silent && !segments.is_empty() {
                            self.begin_at(&class, (first + turn + 1) % segments.len());
                        }
                        let class = item.class.clone();
                        *trouble = Some(PassError::Csi { class, failure });
                        wanted.insert(item, None);
                    }
                }
            }
        }
        wanted
    }

    /// The index of the segment that a pass asks for first, for this class.
    fn first(&self, class: &StorageClass) -> usize {
        let first = self.first.lock();
        first.get(&class.name_any()).copied().unwrap_or_default()
    }

    /// Sets the segment that the next pass begins with for this class.
    fn begin_at(&self, class: &StorageClass, segment: usize) {
        let mut first = self.first.lock();
        first.insert(class.name_any(), segment);
    }

    fn classes(&self) -> Vec<Arc<StorageClass>> {
        let mut classes = self.context.caches.classes().all();
        classes.retain(|class| {
            let has_capacity = self.immediate || pvc::is_delayed(class);
            class.provisioner == self.context.driver.name && has_capacity
        });
        classes
    }

    /// Asks the driver for the room of a class in a segment (GetCapacity).
    async fn ask(&self, class: &StorageClass, item: &Item) -> Result<Room, Failure> {
        let topology = csi::Topology {
            segments: item.segment.clone(),
        };
        let request = csi::GetCapacityRequest {
            parameters: class.parameters.clone().unwrap_or_default(),
            accessible_topology: (!item.segment.is_empty()).then_some(topology),
            ..csi::GetCapacityRequest::default()
        };
        let timeout = self.context.common.timeout.unwrap_or(TIMEOUT);
        let csi = &self.context.driver.csi;
        let answer = csi.get_capacity(request, timeout).await?;
        Ok(Room {
            available: answer.available_capacity,
            largest: answer.maximum_volume_size,
        })
    }

    /// Emits one event for all nodes about a class that the driver refuses. Otherwise pods would
    /// only report that no node has room.
    fn complain(&self, class: &StorageClass, failure: &Failure) {
        let uid = class.uid().unwrap_or_default();
        let message = failure.status.message().to_owned();
        let mut refused = self.refused.lock();
        if refused.get(&uid) == Some(&message) {
            return;
        }
        tracing::warn!(
            class = %class.name_any(), %failure,
            "the driver refuses the parameters of a class"
        );
        let said = format!(
            "the CSI driver refuses the parameters of this StorageClass, so there is no room for \
             its volumes anywhere: {message}"
        );
        self.context
            .events
            .once(class, EventKind::Warning, REFUSED, said);
        refused.insert(uid, message);
    }

    async fn perform(&self, step: Step, marks: &Marks) -> Result<(), ApiError> {
        match step {
            Step::Create(item, room) => {
                let object = self.writer.object(&item, room, &self.namespace, marks);
                let made = self.kube.create(&object).await?;
                self.objects.apply_write(made);
            }
            Step::Update(object, room) => {
                let patch = marks.patch(&object, room);
                // The watch reports a deletion, which queues another pass.
                let written = unless_gone(self.kube.merge(object.as_ref(), patch).await)?;
                written
                    .into_iter()
                    .for_each(|written| self.objects.apply_write(written));
            }
            Step::Delete(object) => self.kube.delete(object.as_ref()).await?,
        }
        Ok(())
    }
}
