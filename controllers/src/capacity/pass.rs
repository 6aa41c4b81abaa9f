//! One pass over all capacity objects: asks the driver for its room, then writes what changed.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use parking_lot::Mutex;

use super::classes::counts_immediate;
use super::decide::{Facts, Precision, Step, Writer, decide};
use super::owner::{Owner, OwnerError};
use super::{Metrics, Options};
use crate::cache::Store;
use crate::client::Kube;
use crate::client::kube::{ApiError, Limit};
use crate::controller::Context;
use crate::csi::Failure;

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
    pub(super) metrics: Metrics,
    /// Also publish room for classes with Immediate binding.
    pub(super) immediate: bool,
    /// API client with a rate limit of its own.
    pub(super) kube: Kube,
    pub(super) writer: Writer,
    pub(super) namespace: String,
    pub(super) owner: Option<Owner>,
    pub(super) objects: Store<CSIStorageCapacity>,
    /// Classes that the driver refused, by UID, with the reported message.
    pub(super) refused: Mutex<BTreeMap<String, String>>,
    /// For each class without an answer: the index of the segment that the next pass asks for
    /// first.
    pub(super) first: Mutex<BTreeMap<String, usize>>,
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
        Pass {
            immediate: counts_immediate(options, &context.scope),
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
    pub(super) async fn run(&self, precision: Precision) -> Result<(), PassError> {
        let changes = self.context.room.changes();
        let mut trouble = None;
        let mut facts = self.gather(&mut trouble).await?;
        let steps = decide(&facts, precision);
        self.count(&facts, &steps);
        if !steps.is_empty() {
            for step in steps {
                if !self.context.acts() {
                    return Ok(());
                }
                match self.apply(step, &facts.marks).await {
                    Ok(()) => {}
                    // The API server is unavailable, so the other writes would fail too.
                    Err(error @ (ApiError::Timeout { .. } | ApiError::Failed { .. })) => {
                        return Err(error.into());
                    }
                    Err(error) => trouble = Some(error.into()),
                }
            }
            facts.objects = self.objects.all();
            let left = decide(&facts, precision);
            self.count(&facts, &left);
        }
        // A class without an answer does not hold back the capacity of the others.
        if precision == Precision::Exact && !matches!(trouble, Some(PassError::Api(_))) {
            self.context.room.published(changes);
        }
        trouble.map_or(Ok(()), Err)
    }

    fn count(&self, facts: &Facts, steps: &[Step]) {
        let Facts {
            desired, objects, ..
        } = facts;
        let published = desired
            .keys()
            .filter(|item| objects.iter().any(|object| item.is_of(object)))
            .count();
        let obsolete = steps.iter();
        let obsolete = obsolete.filter(|step| matches!(step, Step::Delete(_)));
        self.metrics.goal.set(desired.len() as i64);
        self.metrics.current.set(published as i64);
        self.metrics.obsolete.set(obsolete.count() as i64);
    }
}
