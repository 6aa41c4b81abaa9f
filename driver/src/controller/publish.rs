//! ControllerPublishVolume and ControllerUnpublishVolume: record the nodes that may use a volume.
//! The Node service does the actual attach. [`shared`] has what is different for volumes that all
//! nodes of a kernel may use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hostloop_proto::csi;

use super::{Controller, Error, Result, lookup};
use crate::csi::capability::{RequestedCapability, compatible};
use crate::csi::validate::{self, invalid};
use crate::kernel::under_way::{UnderWay, UnderWayGuard};
use crate::storage::{self, Publication, VolumeHandle, VolumeId, VolumeRecord};

mod shared;

/// The action of ControllerPublishVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControllerPublish {
    /// Record the publication.
    Record,
    /// Change nothing: it is recorded already.
    Done,
}

/// Compares a publication with the recorded one of the same node.
fn decide_at(
    record: &VolumeRecord,
    node: &str,
    requested: &Publication,
) -> Result<ControllerPublish> {
    let Some(published) = record.publications.get(node) else {
        return Ok(ControllerPublish::Record);
    };
    let same = published.readonly == requested.readonly
        && compatible(&published.capability, &requested.capability);
    if same {
        Ok(ControllerPublish::Done)
    } else {
        Err(Error::AlreadyExists(format!(
            "volume {} is published to node {node} already, {} and for another use",
            record.id,
            if published.readonly {
                "read-only"
            } else {
                "writable"
            },
        )))
    }
}

/// Compares a publication with the recorded ones of a volume of this node alone.
fn decide(record: &VolumeRecord, node: &str, requested: &Publication) -> Result<ControllerPublish> {
    if decide_at(record, node, requested)? == ControllerPublish::Done {
        return Ok(ControllerPublish::Done);
    }
    // A publication to another node means that this node had another ID before.
    match record.publications.keys().next() {
        Some(other) if !requested.capability.mode.is_multi_node() => {
            Err(Error::FailedPrecondition(format!(
                "volume {} is published to node {other}, and its access mode allows only one",
                record.id
            )))
        }
        _ => Ok(ControllerPublish::Record),
    }
}

/// The attach slots of the node: one for each volume that is published to it. The table has the
/// volumes that count as published, but have no recorded publication yet.
#[derive(Debug, Default)]
pub(super) struct Slots(UnderWay<VolumeId>);

/// A slot, held until the publication is recorded. On drop, the record counts instead, or the slot
/// is free.
type PublicationSlot<'a> = UnderWayGuard<'a, VolumeId>;

impl Slots {
    /// Takes a slot. The lock is held for counting only, never across a write.
    fn take(
        &self,
        volume: VolumeId,
        limit: u64,
        published: impl FnOnce() -> Result<BTreeSet<VolumeId>>,
    ) -> Result<PublicationSlot<'_>> {
        self.0.enter_if(volume, (), |taken| {
            // Under the lock: a publication that is recorded meanwhile still counts as taken.
            let mut used = published()?;
            used.extend(taken.keys());
            used.remove(&volume);
            if used.len() as u64 >= limit {
                Err(Error::ResourceExhausted(format!(
                    "{} volumes are published to this node, and no more than {limit} may be",
                    used.len()
                )))
            } else {
                Ok(())
            }
        })
    }
}

impl Controller {
    pub fn controller_publish_volume(
        &self,
        req: csi::ControllerPublishVolumeRequest,
    ) -> Result<csi::ControllerPublishVolumeResponse> {
        const FIELD: &str = "volume_capability";
        Self::require(self.config.attach, "ControllerPublishVolume")?;
        validate::required("volume_id", &req.volume_id)?;
        validate::required("node_id", &req.node_id)?;
        let rules = &self.config.capabilities;
        // An invalid capability is reported before an unknown volume.
        let requested = RequestedCapability::read(FIELD, req.volume_capability.as_ref(), rules)?;
        let record = self.volume("volume_id", &req.volume_id)?;
        if !record.is_shared() && req.node_id != self.config.node_id {
            return Err(lookup::not_found("node", &req.node_id));
        }
        let capability = requested.of(&record).map_err(|why| invalid(FIELD, why))?;
        let publication = Publication {
            capability,
            readonly: req.readonly,
        };
        let publish_context = if record.is_shared() {
            self.publish_shared(&record, &req.node_id, publication)?
                .write()
        } else {
            let step = decide(&record, &req.node_id, &publication)?;
            self.record_publication(&record, &req.node_id, publication, step)?;
            BTreeMap::new()
        };
        Ok(csi::ControllerPublishVolumeResponse { publish_context })
    }

    /// Records a publication to a node, and syncs the record.
    fn record_publication(
        &self,
        record: &VolumeRecord,
        node: &str,
        publication: Publication,
        step: ControllerPublish,
    ) -> Result<Arc<VolumeRecord>> {
        match step {
            // An earlier call may have failed or died before the record was synced.
            ControllerPublish::Done => Ok(self.pools.update_volume(&record.id, |_| {})?),
            ControllerPublish::Record => {
                // The slots are of this node.
                let limit = self.config.attach_limit;
                let limit = limit.filter(|_| node == self.config.node_id);
                let _slot = limit.map(|limit| self.slot(record, limit)).transpose()?;
                Ok(self.pools.update_volume(&record.id, |record| {
                    record.publications.insert(node.to_owned(), publication);
                    record.fresh = false;
                })?)
            }
        }
    }

    fn slot(&self, record: &VolumeRecord, limit: u64) -> Result<PublicationSlot<'_>> {
        self.slots.take(record.id, limit, || {
            let volumes = self.pools.volumes();
            let here = volumes
                .iter()
                .filter(|v| v.publications.contains_key(&self.config.node_id));
            Ok(here.map(|v| v.id).collect())
        })
    }

    /// ControllerUnpublishVolume: from one node, or from all. Succeeds for an unpublished volume.
    pub fn controller_unpublish_volume(
        &self,
        req: csi::ControllerUnpublishVolumeRequest,
    ) -> Result<csi::ControllerUnpublishVolumeResponse> {
        Self::require(self.config.attach, "ControllerUnpublishVolume")?;
        let done = Ok(csi::ControllerUnpublishVolumeResponse {});
        let Some(handle) = lookup::id::<VolumeHandle>("volume_id", &req.volume_id)? else {
            return done;
        };
        let record = match self.pools.volume(&handle) {
            // An unusable record says nothing of publications, and must not keep the node.
            Err(storage::Error::Corrupt { .. }) => None,
            found => lookup::unless_gone(found)?,
        };
        let Some(record) = record else {
            return done;
        };
        if record.is_shared() {
            self.unpublish_shared(&record, &req.node_id)?;
        } else {
            self.remove_publication(&record, &req.node_id)?;
        }
        done
    }

    /// Removes the publication to a node from the record, or all of them if `node` is empty.
    fn remove_publication(
        &self,
        record: &Arc<VolumeRecord>,
        node: &str,
    ) -> Result<Arc<VolumeRecord>> {
        let is_published = if node.is_empty() {
            !record.publications.is_empty()
        } else {
            record.publications.contains_key(node)
        };
        if !is_published {
            self.pools.acknowledge_volume(&record.id)?;
            return Ok(record.clone());
        }
        Ok(self.pools.update_volume(&record.id, |record| {
            if node.is_empty() {
                record.publications.clear();
            } else {
                record.publications.remove(node);
            }
        })?)
    }
}

#[cfg(test)]
mod tests;
