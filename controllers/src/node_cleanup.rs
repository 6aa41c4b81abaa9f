//! Cleans up after deleted nodes.
//!
//! Only the node of a local volume can detach it, delete it, or remove the finalizers of its
//! objects. After the node is deleted, no process would do that. The leader then does it instead:
//!
//! | object | step |
//! |---|---|
//! | VolumeAttachment that is being deleted | remove our finalizer |
//! | PersistentVolume, Released, policy Delete | delete it, remove finalizers: its data is gone |
//! | PersistentVolume, Bound | repeat an event on it and its claim |
//! | claim that waits for a volume on the node | have the scheduler select another node |
//! | content of a snapshot that is being deleted | remove our finalizer |
//! | CSIStorageCapacity | delete it |
//!
//! The node of a volume that all nodes of a kernel can use is the one in its label: it detaches the
//! volume from all of them, also from one that is gone. While it is there and not ready, an event on the
//! claim says what waits for it.
//!
//! A node counts as gone if no node of that name was seen for a grace period. A live GET on the API
//! server must confirm it. If a node exists but has the out-of-service taint, only its
//! VolumeAttachments are released. Objects with policy Retain are never deleted here, but one that its
//! user deletes loses our finalizer.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::api::object_name::VolumeNaming;
use crate::api::{duration, pv};
use crate::attacher;
use crate::cache::{Index, Store};
use crate::client::Kube;
use crate::controller::Context;
use crate::controller::grace_period::GracePeriod;

mod apply;
mod decide;
mod gather;
mod node_resolver;

use apply::NodeLoss;
use decide::{Leftover, Settings};
use node_resolver::NodeResolver;

/// The longest and the shortest wait between two passes.
const LOOK: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(1));

/// Flags of the node cleanup.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Gone nodes")]
pub struct Options {
    /// How long a node must be missing before its leftover objects are cleaned up
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    pub gone_node_grace: Duration,
}

struct NodeCleanup {
    context: Context,
    kube: Kube,
    settings: Settings,
    grace: Duration,
    capacities: Option<Store<CSIStorageCapacity>>,
    /// The driver's volumes by node affinity. A cluster has few affinities, with many volumes each.
    by_affinity: Index<PersistentVolume>,
    /// PersistentVolumes that all nodes of a kernel can use, by name.
    shared: Index<PersistentVolume>,
    /// Claims that wait for a volume, by selected node.
    waiting: Index<PersistentVolumeClaim>,
    resolver: NodeResolver,
    absent: GracePeriod<String>,
    /// When a bound volume was last reported, by UID.
    reported: BTreeMap<String, Instant>,
    /// Attachments that wait for the node that has their volume, by name.
    away: GracePeriod<String>,
    /// When such an attachment was last reported, by name.
    reported_away: BTreeMap<String, Instant>,
    /// The number of volumes reported in this pass.
    reported_now: usize,
}

/// Runs until `context.stop`. `capacities` holds the capacity objects of all nodes, if the cluster
/// serves them.
pub(crate) async fn run(
    context: Context,
    options: Options,
    naming: VolumeNaming,
    capacities: Option<Store<CSIStorageCapacity>>,
) {
    let stop = context.stop.clone();
    let mut cleanup = NodeCleanup::new(context, &options, naming, capacities);
    let (most, least) = LOOK;
    let look = (options.gone_node_grace / 5).clamp(least, most);
    let passes = async {
        cleanup.synced().await;
        loop {
            cleanup.pass().await;
            tokio::time::sleep(look).await;
        }
    };
    stop.run_until_cancelled(passes).await;
}

impl NodeCleanup {
    fn new(
        context: Context,
        options: &Options,
        naming: VolumeNaming,
        capacities: Option<Store<CSIStorageCapacity>>,
    ) -> Self {
        let settings = Settings {
            driver: context.driver.name.clone(),
            attached: attacher::finalizer(&context.driver.name),
            naming,
        };
        let (of_volumes, of_claims) = (settings.clone(), settings.clone());
        let volumes = context.caches.volumes();
        let claims = context.caches.claims();
        NodeCleanup {
            by_affinity: volumes
                .index(move |volume| of_volumes.place(volume).into_iter().collect()),
            shared: volumes.index(|volume| {
                let name = pv::is_shared(volume).then(|| volume.name_any());
                name.into_iter().collect()
            }),
            waiting: claims.index(move |claim| of_claims.awaited(claim).into_iter().collect()),
            kube: context.kube.managed_by("hostloop-gone-nodes"),
            context,
            settings,
            grace: options.gone_node_grace,
            capacities,
            resolver: NodeResolver::default(),
            absent: GracePeriod::default(),
            reported: BTreeMap::new(),
            away: GracePeriod::default(),
            reported_away: BTreeMap::new(),
            reported_now: 0,
        }
    }

    async fn synced(&self) {
        let caches = &self.context.caches;
        caches.nodes().synced().await;
        caches.csi_nodes().synced().await;
        caches.volumes().synced().await;
        caches.claims().synced().await;
        caches.attachments().synced().await;
        // Do not wait for contents: the API server may not serve snapshots, and no other object's
        // cleanup depends on them.
        if let Some(capacities) = &self.capacities {
            capacities.synced().await;
        }
    }

    /// Makes one pass over all objects.
    async fn pass(&mut self) {
        // If the node watch is stuck, all nodes may seem to be gone.
        let blind = self.context.caches.nodes().trouble().is_some();
        if blind || !self.context.leader.leads() {
            return;
        }
        self.reported_now = 0;
        let now = Instant::now();
        self.reported
            .retain(|_, at| now - *at < Duration::from_secs(24 * 3600));
        let caches = &self.context.caches;
        let nodes = caches.nodes().all();
        let csi_nodes = caches.csi_nodes().all();
        self.resolver
            .note(&nodes, &csi_nodes, &self.settings.driver);
        let facts = self.gather(nodes);
        let waiting = self.settings.waiting_for_owner(&facts);
        self.report_waiting(&waiting, now);
        let leftovers = self.settings.leftovers(&facts, &self.resolver);
        let named = leftovers.iter().map(|leftover| leftover.node.clone());
        let named: std::collections::BTreeSet<String> = named.collect();
        self.resolver.forget_all_but(&named);
        let due = self.absent.due(named, now, self.grace);
        for node in due {
            let of_node = leftovers.iter().filter(|leftover| leftover.node == node);
            if !self
                .tidy(&node, of_node.cloned().collect(), NodeLoss::Gone)
                .await
            {
                return;
            }
        }
        let mut by_node: BTreeMap<String, Vec<Leftover>> = BTreeMap::new();
        for leftover in self.settings.out_of_service(&facts) {
            let of_node = by_node.entry(leftover.node.clone()).or_default();
            of_node.push(leftover);
        }
        for (node, leftovers) in by_node {
            if !self.tidy(&node, leftovers, NodeLoss::OutOfService).await {
                return;
            }
        }
    }

    /// Cleans up after one node. False if the pass must stop.
    async fn tidy(&mut self, node: &String, leftovers: Vec<Leftover>, loss: NodeLoss) -> bool {
        if leftovers.iter().all(|leftover| leftover.step.is_none()) {
            return true;
        }
        if !self.is_proven(node, loss).await {
            self.absent.forget(node);
            return true;
        }
        for leftover in leftovers {
            if !self.perform(leftover, loss).await {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;
