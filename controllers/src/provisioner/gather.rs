//! Gathers the facts about one claim from the caches. Where a cache miss proves nothing, it asks
//! the API server.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::ResourceExt;

use crate::api::pvc::{self, DataSource};
use crate::api::scope::Scope;
use crate::api::secret_template::annotation_keys;
use crate::api::topology::NodeTopology;
use crate::client::ApiError;
use crate::kept_fields::CLAIM_ANNOTATIONS;
use crate::snapshots::VolumeSnapshot;

use super::Provisioner;
use super::decide::{self, ClaimFacts, Draft, Facts, Plan, Settings, VolumeFacts};
use super::source::SourceObjects;

/// Characters of an annotation that count: a secret's name has at most 253.
const MAX_ANNOTATION: usize = 300;

impl Provisioner {
    pub(super) fn settings(&self) -> Settings<'_> {
        Settings {
            driver: &self.capabilities,
            scope: &self.context.scope,
            pools: &self.context.pools,
            flags: &self.flags,
        }
    }

    /// Gathers everything about a claim. `last` is the plan of a CreateVolume call that may still
    /// be running. If the first part of the decision settles the claim, nothing more is read.
    pub(super) async fn gather(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        last: Option<Arc<Plan>>,
    ) -> Result<Facts, ApiError> {
        let claim = self.claim_facts(claim, last).await?;
        let volume = match decide::screen(&claim, self.settings()) {
            Ok(ControlFlow::Continue(draft)) => {
                self.volume_facts(&draft, claim.last.is_some()).await?
            }
            Ok(ControlFlow::Break(_)) | Err(_) => VolumeFacts::default(),
        };
        Ok(Facts { claim, volume })
    }

    async fn claim_facts(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        last: Option<Arc<Plan>>,
    ) -> Result<ClaimFacts, ApiError> {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let mut facts = ClaimFacts {
            claim: claim.clone(),
            leads: self.context.leader.leads(),
            class: None,
            has_volume: false,
            wait: None,
            last,
        };
        let context = self.settings().claim_context(facts.leads);
        if !pvc::is_for(claim, context.driver) || !pvc::is_here(claim, context) {
            return Ok(facts);
        }
        facts.class = self.class_of(claim).await?;
        let Some(class) = &facts.class else {
            return Ok(facts);
        };
        facts.wait = self.in_flight.wait(uid, class.metadata.uid.as_ref());
        if facts.last.is_none() && pvc::is_due(claim, class, context) {
            facts.has_volume = self.has_volume(claim).await?;
            if !facts.has_volume {
                facts.claim = self.with_annotations(claim, class).await?;
            }
        }
        Ok(facts)
    }

    /// Adds the annotations that the class's templates name to a claim. Caches have only those that
    /// no template decides on.
    async fn with_annotations(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        class: &StorageClass,
    ) -> Result<Arc<PersistentVolumeClaim>, ApiError> {
        let parameters = class.parameters.iter().flatten();
        let keys: BTreeSet<_> = parameters
            .flat_map(|(_, value)| annotation_keys(value))
            .collect();
        if keys.is_empty() {
            return Ok(claim.clone());
        }
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let _one = self.one_large_read.lock().await;
        let now = self
            .kube
            .get_fields(&namespace, &name, &CLAIM_ANNOTATIONS)
            .await?;
        let now = now.filter(|now: &PersistentVolumeClaim| now.uid() == claim.uid());
        let mut annotated = PersistentVolumeClaim::clone(claim);
        for (key, value) in now
            .and_then(|now| now.metadata.annotations)
            .unwrap_or_default()
        {
            if keys.contains(key.as_str()) {
                // No longer text can be a secret's name.
                let value = value.chars().take(MAX_ANNOTATION).collect();
                annotated.annotations_mut().insert(key, value);
            }
        }
        Ok(Arc::new(annotated))
    }

    async fn class_of(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Result<Option<Arc<StorageClass>>, ApiError> {
        match pvc::class_name(claim) {
            None => Ok(None),
            Some(name) => {
                self.kube
                    .find_live(&self.context.caches.classes(), "", name)
                    .await
            }
        }
    }

    /// True if the PersistentVolume of a claim exists. If an earlier process may have created it,
    /// the API server is asked: a node's watch may not show that volume. For a newer claim, only
    /// another node could have created it. That is rare, and the name of the PersistentVolume
    /// reveals it.
    async fn has_volume(&self, claim: &PersistentVolumeClaim) -> Result<bool, ApiError> {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let volumes = self.context.caches.volumes();
        let name = self.flags.options.naming.volume_of(claim);
        if self.in_flight.needs_live_check(uid) {
            let found = self.kube.find(&volumes, "", &name).await?;
            return Ok(found.is_some());
        }
        Ok(volumes.get(&name).is_some())
    }

    /// `is_begun`: a CreateVolume call for the claim may still be running. Whatever the node is
    /// like now, that call is repeated.
    async fn volume_facts(&self, draft: &Draft, is_begun: bool) -> Result<VolumeFacts, ApiError> {
        let source = self.source(draft).await?;
        let mut facts = VolumeFacts {
            source,
            ..VolumeFacts::default()
        };
        if let Some(name) = self.context.scope.node().filter(|_| !is_begun) {
            facts.unfit = self.own_node.unfit_for(draft, name, &self.kube).await?;
        }
        if self.context.driver.has_topology() {
            let uid = draft.claim.metadata.uid.as_deref().unwrap_or_default();
            let selected = decide::selected_node(draft, &self.context.scope);
            let known = self.in_flight.topology(uid);
            facts.known_topology = known.filter(|known| known.is_of(selected));
            let needed = selected.filter(|_| facts.known_topology.is_none());
            facts.nodes = self.nodes(needed).await?;
        }
        if let Some(name) = pvc::attributes_class(&draft.claim) {
            let watch = self.context.caches.attributes_classes();
            facts.attributes = self.kube.find_live(&watch, "", name).await?;
        }
        Ok(facts)
    }

    /// Reads snapshots and their contents live, because they may have become ready since.
    async fn source(&self, draft: &Draft) -> Result<SourceObjects, ApiError> {
        let (kube, caches) = (&self.kube, &self.context.caches);
        let namespace = draft.claim.namespace().unwrap_or_default();
        let mut found = SourceObjects::default();
        match &draft.source {
            DataSource::Nothing | DataSource::Other(_) => {}
            DataSource::Snapshot(name) => {
                found.snapshot = kube.get(&namespace, name).await?.map(Arc::new);
                let snapshot = found.snapshot.as_deref();
                if let Some(bound) = snapshot.and_then(VolumeSnapshot::bound_content) {
                    found.content = kube.get("", bound).await?.map(Arc::new);
                }
            }
            DataSource::Claim(name) => {
                found.claim = kube.find_live(&caches.claims(), &namespace, name).await?;
                if let Some(bound) = found.claim.as_deref().and_then(pvc::volume_name) {
                    found.volume = kube.find_live(&caches.volumes(), "", bound).await?;
                }
            }
        }
        Ok(found)
    }

    /// The nodes that volumes may be created for. If the caches do not show the node `selected`, it
    /// is read live, because it may be new.
    async fn nodes(&self, selected: Option<&str>) -> Result<Vec<NodeTopology>, ApiError> {
        if let Scope::Node { name, segments } = &self.context.scope {
            return Ok(vec![NodeTopology {
                node: name.clone(),
                labels: segments.clone(),
                is_registered: true,
                keys: segments.keys().cloned().collect(),
            }]);
        }
        let (nodes, csi_nodes) = (self.context.caches.nodes(), self.context.caches.csi_nodes());
        let driver = &self.context.driver.name;
        let mut all: Vec<_> = nodes
            .all()
            .iter()
            .map(|node| {
                let csi_node = csi_nodes.get(&node.name_any());
                NodeTopology::new(node, csi_node.as_deref(), driver)
            })
            .collect();
        let Some(name) = selected else {
            return Ok(all);
        };
        if !all
            .iter()
            .any(|one| one.node == name && !one.keys.is_empty())
        {
            let node = self.kube.get::<Node>("", name).await?;
            let csi_node = self.kube.get::<CSINode>("", name).await?;
            all.retain(|one| one.node != name);
            all.extend(node.map(|node| NodeTopology::new(&node, csi_node.as_ref(), driver)));
        }
        Ok(all)
    }
}
