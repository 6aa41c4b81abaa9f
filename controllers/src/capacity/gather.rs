//! Gathers the facts of a pass: the room from the driver, and the objects from the cache.

use std::time::Duration;

use hostloop_proto::csi;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::classes::classes;
use super::decide::{DesiredObjects, Facts, FreeCapacity, Item, Marks};
use super::owner::OwnerError;
use super::pass::{Pass, PassError};
use super::segments::segments;
use crate::csi::Failure;
use crate::csi::pools::annotation;

/// Default timeout of a GetCapacity call.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Pass {
    /// Gathers all that a pass decides by. `trouble` gets the last error of the driver.
    pub(super) async fn gather(
        &self,
        trouble: &mut Option<PassError>,
    ) -> Result<Facts, OwnerError> {
        Ok(Facts {
            desired: self.desired(trouble).await,
            marks: self.marks().await?,
            objects: self.objects.all(),
        })
    }

    /// The owner and the pools that the objects should carry.
    async fn marks(&self) -> Result<Marks, OwnerError> {
        let pools = self.context.pools.known();
        // This client has no rate limit: the owner is looked up only once.
        let owner = match &self.owner {
            Some(owner) => Some(owner.get(&self.context.kube).await?.clone()),
            None => None,
        };
        Ok(Marks {
            owner,
            pools: (!pools.is_empty()).then(|| annotation(pools)),
            endpoint: self
                .context
                .endpoint
                .as_ref()
                .map(|own| own.endpoint.to_string()),
        })
    }

    /// The objects that should exist, with the room from the driver. `trouble` gets the last error.
    async fn desired(&self, trouble: &mut Option<PassError>) -> DesiredObjects {
        let segments = segments(
            &self.context.scope,
            self.context.driver.has_topology(),
            &self.context.driver.name,
            &self.context.caches,
        );
        let mut desired = DesiredObjects::new();
        for class in classes(&self.context, self.immediate) {
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
                    desired.insert(item, None);
                    continue;
                }
                match self.ask(&class, &item).await {
                    Ok(room) => {
                        desired.insert(item, Some(room));
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
                        desired.insert(item, None);
                    }
                }
            }
        }
        desired
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

    /// Asks the driver for the room of a class in a segment (GetCapacity).
    async fn ask(&self, class: &StorageClass, item: &Item) -> Result<FreeCapacity, Failure> {
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
        Ok(FreeCapacity {
            available: answer.available_capacity,
            largest: answer.maximum_volume_size,
        })
    }
}
