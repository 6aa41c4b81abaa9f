//! The rows of volumes.

use std::collections::BTreeSet;

use hostloop_api_objects::labels::{NODE_LABEL, SELECTED_NODE};
use hostloop_report::status::{VolumeReport, VolumeUser};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use super::{ClusterFacts, ReportedObjects};
use crate::status::report::VolumeRow;
use crate::verdict::{OnNode, Verdict, VolumeFacts, volume_verdict};
use crate::volume_objects::{
    claim_ref, claim_size, class_name, created_ns, handle, has_ended, inline_volumes,
    is_reported_shared, is_shared, source_of, volume_size,
};

impl ClusterFacts<'_> {
    pub(super) fn volumes(&self, found: &ReportedObjects<'_>) -> Vec<VolumeRow> {
        let objects = self.objects;
        let mut rows = Vec::new();
        let mut seen = BTreeSet::new();
        for claim in objects
            .claims
            .iter()
            .filter(|c| objects.is_of_driver(c, self.driver))
        {
            let row = self.claim_row(claim, found);
            seen.extend(row.handle.clone());
            rows.push(row);
        }
        for pod in &objects.pods {
            for (name, handle) in inline_volumes(pod, self.driver) {
                // Kubelet unmounts the volumes of a pod that has ended.
                if has_ended(pod) && !found.volumes.contains_key(handle.as_str()) {
                    continue;
                }
                let row = self.inline_row(pod, name, &handle, found);
                seen.extend(row.handle.clone());
                rows.push(row);
            }
        }
        // A claim may be missing from the list: it is deleted, or the person may not list claims.
        for volume in objects
            .volumes
            .iter()
            .filter(|volume| self.has_claim_of(volume))
        {
            let Some(handle) = handle(volume, self.driver) else {
                continue;
            };
            if seen.insert(handle.to_owned()) {
                rows.push(self.unclaimed_row(volume, handle, found));
            }
        }
        if self.namespace.is_some() {
            return rows;
        }
        let rest = found
            .volumes
            .values()
            .filter(|(_, volume)| seen.insert(volume.id.clone()));
        rows.extend(rest.map(|(node, volume)| self.unknown_row(node, volume)));
        for id in self.failed_calls.ids() {
            if seen.insert(id.to_owned()) {
                rows.extend(self.unreported_row(id));
            }
        }
        rows
    }

    /// True if the volume's claim is in the namespace of the report.
    fn has_claim_of(&self, volume: &PersistentVolume) -> bool {
        let namespace = claim_ref(volume).and_then(|claim| claim.namespace.as_deref());
        self.namespace
            .is_none_or(|wanted| namespace == Some(wanted))
    }

    fn facts<'a>(&'a self, on_node: OnNode<'a>) -> VolumeFacts<'a> {
        VolumeFacts {
            has_all_volumes: self.objects.has_all_volumes,
            on_node,
            events: &self.objects.events,
            now_ns: self.now_ns,
            ..VolumeFacts::default()
        }
    }

    /// The same with the calls about the volume.
    fn facts_of_calls<'a>(&'a self, on_node: OnNode<'a>) -> VolumeFacts<'a> {
        let failed_call = match &on_node {
            OnNode::Known(volume) => self.failed_calls.of(&volume.id),
            OnNode::Missing(_) | OnNode::Unknown => None,
        };
        VolumeFacts {
            failed_call,
            ..self.facts(on_node)
        }
    }

    fn claim_row(&self, claim: &PersistentVolumeClaim, found: &ReportedObjects<'_>) -> VolumeRow {
        let objects = self.objects;
        let volume = objects.volume_of(claim);
        let handle = volume.and_then(|volume| handle(volume, self.driver));
        let node = volume.and_then(node_of).or_else(|| {
            claim
                .annotations()
                .get(SELECTED_NODE)
                .or(claim.labels().get(NODE_LABEL))
                .cloned()
        });
        let pods = objects.pods_of(claim);
        let facts = VolumeFacts {
            claim: Some(claim),
            volume,
            class: objects.class_of(claim),
            attachments: volume
                .map(|v| objects.attachments_of(v))
                .unwrap_or_default(),
            pods: pods.clone(),
            ..self.facts(found.on_node(handle, node.as_deref()))
        };
        let row = VolumeRow {
            namespace: claim.namespace(),
            claim: Some(claim.name_any()),
            claim_uid: claim.uid(),
            node: node.clone(),
            size_bytes: claim_size(claim),
            pods: pods.iter().map(|pod| pod.name_any()).collect(),
            volume: volume.map(ResourceExt::name_any),
            handle: handle.map(str::to_owned),
            class: class_name(claim).map(str::to_owned),
            source: source_of(claim),
            created_ns: created_ns(claim),
            ..VolumeRow::default()
        };
        completed(row, &facts, found)
    }

    fn inline_row(
        &self,
        pod: &Pod,
        name: String,
        handle: &str,
        found: &ReportedObjects<'_>,
    ) -> VolumeRow {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let on_node = found
            .volumes
            .get(handle)
            .map_or(OnNode::Unknown, |(_, v)| OnNode::Known(v));
        let facts = VolumeFacts {
            pods: vec![pod],
            ..self.facts_of_calls(on_node)
        };
        let row = VolumeRow {
            namespace: pod.namespace(),
            inline: Some(name),
            node,
            pods: vec![pod.name_any()],
            created_ns: created_ns(pod),
            ..VolumeRow::default()
        };
        completed(row, &facts, found)
    }

    fn unclaimed_row(
        &self,
        volume: &PersistentVolume,
        handle: &str,
        found: &ReportedObjects<'_>,
    ) -> VolumeRow {
        let node = node_of(volume);
        let facts = VolumeFacts {
            volume: Some(volume),
            ..self.facts(found.on_node(Some(handle), node.as_deref()))
        };
        let claim = claim_ref(volume);
        let row = VolumeRow {
            namespace: claim.and_then(|claim| claim.namespace.clone()),
            claim: claim.and_then(|claim| claim.name.clone()),
            claim_uid: claim.and_then(|claim| claim.uid.clone()),
            node,
            size_bytes: volume_size(volume),
            volume: Some(volume.name_any()),
            handle: Some(handle.to_owned()),
            class: volume
                .spec
                .as_ref()
                .and_then(|spec| spec.storage_class_name.clone()),
            created_ns: created_ns(volume),
            ..VolumeRow::default()
        };
        completed(row, &facts, found)
    }

    fn unknown_row(&self, node: &str, volume: &VolumeReport) -> VolumeRow {
        let facts = self.facts_of_calls(OnNode::Known(volume));
        let row = VolumeRow {
            node: Some(node.to_owned()),
            inline: volume.inline.clone(),
            created_ns: volume.created_ns,
            ..VolumeRow::default()
        };
        with_verdict(with_node(row, volume), &facts)
    }

    /// A volume that only calls name, if they fail.
    fn unreported_row(&self, id: &str) -> Option<VolumeRow> {
        let failed_call = self.failed_calls.of(id)?;
        let facts = VolumeFacts {
            failed_call: Some(failed_call),
            ..self.facts(OnNode::Unknown)
        };
        let row = VolumeRow {
            handle: Some(id.to_owned()),
            ..VolumeRow::default()
        };
        Some(with_verdict(row, &facts))
    }
}

/// Completes a row by the decision and by what the node reports.
fn completed(row: VolumeRow, facts: &VolumeFacts<'_>, found: &ReportedObjects<'_>) -> VolumeRow {
    let row = with_verdict(row, facts);
    let OnNode::Known(volume) = &facts.on_node else {
        return row;
    };
    let node = found
        .volumes
        .get(volume.id.as_str())
        .map(|(node, _)| (*node).to_owned());
    with_node(
        VolumeRow {
            node: node.or(row.node.clone()),
            ..row
        },
        volume,
    )
}

fn with_verdict(row: VolumeRow, facts: &VolumeFacts<'_>) -> VolumeRow {
    let Verdict { state, stuck, note } = volume_verdict(facts);
    VolumeRow {
        state,
        stuck,
        note,
        ..row
    }
}

/// The nodes that use a volume that several can use. Of any other, it is its own node.
fn shared_users(volume: &VolumeReport) -> Vec<VolumeUser> {
    if is_reported_shared(volume) {
        volume.users.clone()
    } else {
        Vec::new()
    }
}

/// Adds what the node reports about a volume. The claim may have asked for less.
fn with_node(row: VolumeRow, volume: &VolumeReport) -> VolumeRow {
    VolumeRow {
        reach: volume.reach.clone(),
        users: shared_users(volume),
        pool: Some(volume.pool.clone()),
        size_bytes: Some(volume.size_bytes),
        used_bytes: volume.allocated_bytes,
        filesystem: Some(volume.format.clone()),
        loops: volume
            .loops
            .iter()
            .map(|path| path.display().to_string())
            .collect(),
        direct_io: volume.direct_io,
        fault: volume.fault.clone(),
        handle: Some(volume.id.clone()),
        ..row
    }
}

/// The node that the affinity of a volume names, or its label. The affinity of a shared volume names all
/// nodes that can use it, and the label the one with its pool.
pub(crate) fn node_of(volume: &PersistentVolume) -> Option<String> {
    let label = volume.labels().get(NODE_LABEL).cloned();
    if is_shared(volume) && label.is_some() {
        return label;
    }
    let affinity = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref());
    let terms = affinity.and_then(|affinity| affinity.required.as_ref());
    let mut labels = terms
        .into_iter()
        .flat_map(|selector| &selector.node_selector_terms)
        .flat_map(|term| term.match_expressions.iter().flatten());
    let node = labels.find(|label| {
        label.operator == "In" && (label.key.ends_with("/node") || label.key.ends_with("/hostname"))
    });
    match node.and_then(|label| label.values.as_deref()) {
        Some([node]) => Some(node.clone()),
        _ => label,
    }
}
