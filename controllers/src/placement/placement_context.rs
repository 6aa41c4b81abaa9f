//! What choosing and labelling share.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::ResourceExt;
use serde_json::json;
use tokio::sync::Notify;

use super::Options;
use super::capacities::Capacities;
use super::room::NodeRoom;
use crate::api::capacity::managed_by;
use crate::api::scope::{MANAGED_BY, NODE_LABEL, node_label};
use crate::cache::{Change, Index, Store};
use crate::client::{ApiError, Kube, Resource};
use crate::controller::{Context, pause};
use crate::queue::Outcome;

/// Default period between two reconciles of all objects.
const RESYNC: Duration = Duration::from_secs(15 * 60);
/// Minimum time between two reconciles of a waiting claim, or of all objects: changes are
/// frequent.
pub(super) const PACE: Duration = Duration::from_secs(1);

/// The context, options and client of placement, and the capacity objects of nodes. From these and
/// the caches follows where data is (`locate.rs`).
pub(super) struct PlacementContext {
    pub(super) context: Context,
    pub(super) options: Options,
    /// API client with placement's own field manager.
    pub(super) kube: Kube,
    /// `None` if nodes publish no capacity.
    pub(super) capacities: Option<Capacities>,
    /// Nodes by the `managed-by` label of their capacity objects.
    pub(super) keepers: Index<Node>,
}

impl PlacementContext {
    /// `capacities` are the capacity objects of all nodes, if they are published and known.
    pub(super) fn new(
        context: Context,
        options: Options,
        capacities: Option<Store<CSIStorageCapacity>>,
    ) -> Self {
        PlacementContext {
            kube: context.kube.managed_by("hostloop-placement"),
            capacities: capacities.map(Capacities::new),
            keepers: context
                .caches
                .nodes()
                .index(|node| vec![managed_by(Some(&node.name_any()))]),
            options,
            context,
        }
    }

    /// Waits until all caches that decisions depend on are synced.
    pub(super) async fn synced(&self) {
        let caches = &self.context.caches;
        caches.claims().synced().await;
        caches.volumes().synced().await;
        caches.classes().synced().await;
        caches.nodes().synced().await;
        caches.csi_nodes().synced().await;
        // Do not wait for snapshots and groups: most claims do not use them, and the API server may
        // not serve them.
        if let Some(capacities) = &self.capacities {
            capacities.store.synced().await;
        }
    }

    /// Waits until all objects must be reconciled: for the resync period, or for a notification.
    pub(super) async fn resync_due(&self, resync: &Notify) {
        let period = self.context.common.resync_period.unwrap_or(RESYNC);
        tokio::select! {
            () = resync.notified() => {}
            () = pause(period) => {}
        }
    }

    /// The room in a node's capacity object for a class.
    pub(super) fn room(&self, node: &str, class: &str) -> Option<NodeRoom> {
        self.capacities.as_ref()?.room(node, class)
    }

    /// Writes the label of a node to an object. `managed-by` decides who works on a content, so that
    /// write fails if the object changed since it was read: it must not overwrite another writer's.
    pub(super) async fn label<K: Resource>(
        &self,
        watch: &Store<K>,
        object: &K,
        key: &str,
        value: &str,
    ) -> Outcome {
        if !self.context.leader.leads() {
            return Outcome::Done;
        }
        let mut metadata = json!({"uid": object.uid(), "labels": {key: value}});
        if key == MANAGED_BY {
            metadata["resourceVersion"] = json!(object.resource_version());
        }
        let kind = K::kind(&());
        let written = self.kube.merge(object, json!({"metadata": metadata})).await;
        let (result, outcome) = match written {
            Ok(written) => {
                watch.apply_write(written);
                ("ok", Outcome::Done)
            }
            Err(ApiError::NotFound { .. }) => return Outcome::Done,
            Err(error) => {
                let name = object.name_any();
                tracing::info!(kind = %kind, name, %error, "cannot label an object");
                (error.word(), Outcome::Failed)
            }
        };
        self.options.metrics.labelled(&kind, result);
        outcome
    }
}

/// True if the labels assign an object to this node.
pub(super) fn is_labelled(labels: &BTreeMap<String, String>, node: &str) -> bool {
    labels.get(NODE_LABEL) == Some(&node_label(node))
}

/// True if a node is new, gone, or has other labels: affinities may fit other nodes now.
pub(super) fn moves_objects(change: &Change<Node>) -> bool {
    let both = change.both();
    both.is_none_or(|(old, new)| old.labels() != new.labels())
}

/// True if a change concerns nothing that placement reads. The status is not read, and the cluster
/// writes one or two for each object that is bound.
pub(super) fn says_nothing_new<K: Resource, S: PartialEq>(
    change: &Change<K>,
    spec: fn(&K) -> &S,
) -> bool {
    let Some((old, new)) = change.both() else {
        return false;
    };
    spec(old) == spec(new)
        && old.labels() == new.labels()
        && old.annotations() == new.annotations()
        && old.meta().deletion_timestamp == new.meta().deletion_timestamp
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::Value;

    use super::*;
    use crate::testing::{read, with};

    #[test]
    fn what_is_looked_at() {
        let was = json!({
            "metadata": {"name": "c", "resourceVersion": "1", "annotations": {"a": "1"}},
            "spec": {"storageClassName": "now"}, "status": {"phase": "Pending"},
        });
        let claim = |change: Value| -> Arc<PersistentVolumeClaim> {
            Arc::new(read(with(was.clone(), change)))
        };
        let status = json!({"metadata": {"resourceVersion": "2"}, "status": {"phase": "Bound"}});
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        for (what, change, nothing) in [
            ("its status", status, true),
            ("its volume", json!({"spec": {"volumeName": "v"}}), false),
            (
                "a label",
                json!({"metadata": {"labels": {"l": "1"}}}),
                false,
            ),
            (
                "an annotation",
                json!({"metadata": {"annotations": {"a": null}}}),
                false,
            ),
            ("its end", deleted, false),
        ] {
            let change = Change::Applied {
                old: Some(claim(json!({}))),
                new: claim(change),
            };
            assert_eq!(says_nothing_new(&change, |c| &c.spec), nothing, "{what}");
        }
        let (old, new) = (None, claim(json!({})));
        for change in [
            Change::Applied {
                old,
                new: new.clone(),
            },
            Change::Deleted(new),
        ] {
            assert!(!says_nothing_new(&change, |c| &c.spec), "{change:?}");
        }
    }
}
