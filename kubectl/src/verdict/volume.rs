//! How far a volume is, and why it does not go on.

use hostloop_api_objects::labels::SELECTED_NODE;
use hostloop_report::quantity;
use hostloop_report::status::{VolumeFault, VolumeReport};
use k8s_openapi::api::core::v1::{
    Event, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition,
};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use kube::ResourceExt;

use crate::events::{self, Warning};
use crate::verdict::{
    LONG_FREEZE_NS, NEWS_NS, Stuck, Verdict, VolumePhase, attachment_stuck, is_overdue,
};
use crate::volume_objects::{
    bound_volume, condition, created_ns, is_reported_shared, ns, phase, present_size,
    requested_size, volume_phase,
};

/// What is known about one volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeFacts<'a> {
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    pub(crate) volume: Option<&'a PersistentVolume>,
    /// False if the PersistentVolume may exist although there is none here.
    pub(crate) has_all_volumes: bool,
    pub(crate) class: Option<&'a StorageClass>,
    pub(crate) attachments: Vec<&'a VolumeAttachment>,
    pub(crate) pods: Vec<&'a Pod>,
    /// What the volume's node says about it.
    pub(crate) on_node: OnNode<'a>,
    /// Why its calls fail. Of a volume with objects, those say it.
    pub(crate) failed_call: Option<Stuck>,
    pub(crate) events: &'a [Event],
    pub(crate) now_ns: u64,
}

/// A volume in the report of its node.
#[derive(Clone, Debug, Default)]
pub(crate) enum OnNode<'a> {
    /// The node is unknown, or does not report.
    #[default]
    Unknown,
    /// The node reports, and does not have the volume. The text explains that.
    Missing(String),
    /// The node has it.
    Known(&'a VolumeReport),
}

pub(crate) fn volume_verdict(facts: &VolumeFacts<'_>) -> Verdict {
    let Some(claim) = facts.claim else {
        return without_claim(facts);
    };
    let status = claim.status.as_ref();
    let claim_phase = status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending");
    match claim_phase {
        "Lost" => {
            let name = bound_volume(claim).unwrap_or("of the claim");
            let why = format!("PersistentVolume {name} is gone");
            Verdict::stuck(VolumePhase::Lost, Stuck::new(why, None))
        }
        _ if claim.metadata.deletion_timestamp.is_some() => deleting(facts, claim),
        "Bound" => bound(facts, claim),
        _ => pending(facts, claim),
    }
}

/// A claim that is being deleted waits for its pods.
fn deleting(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> Verdict {
    let since = claim.metadata.deletion_timestamp.as_ref().map(ns);
    if !facts.pods.is_empty() {
        let note = format!("waits for the end of {}", names(&facts.pods));
        return Verdict::noted(VolumePhase::Deleting, note);
    }
    if is_overdue(since, facts.now_ns) {
        let finalizers = claim.finalizers().join(", ");
        let why = format!("its deletion waits for the finalizers {finalizers}");
        return Verdict::stuck(VolumePhase::Deleting, Stuck::new(why, since));
    }
    Verdict::fine(VolumePhase::Deleting)
}

fn pending(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> Verdict {
    if waits_for_first_pod(facts, claim) {
        return Verdict::noted(VolumePhase::Pending, "waits for its first pod");
    }
    let first_pod = facts.pods.iter().map(|pod| created_ns(*pod)).min();
    let first_pod = first_pod.filter(|_| binds_late(facts, claim)).unwrap_or(0);
    let warning = events::last_warning(facts.events, claim, first_pod);
    if let Some(warning) = warning.or_else(|| pod_warning(facts)) {
        return Verdict::stuck(VolumePhase::Pending, warning);
    }
    let (note, why) = pending_words(facts, claim);
    let since = created_ns(claim).max(first_pod);
    if is_overdue(Some(since), facts.now_ns) {
        return Verdict::stuck(VolumePhase::Pending, Stuck::new(why, Some(since)));
    }
    Verdict::noted(VolumePhase::Pending, note)
}

/// What a pending claim waits for, at first and when it takes too long.
fn pending_words(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> (String, String) {
    if let Some(name) = bound_volume(claim) {
        let note = format!("waits for PersistentVolume {name}");
        return (note.clone(), note);
    }
    if binds_late(facts, claim) && selected_node(claim).is_none() {
        let pods = names(&facts.pods);
        return (
            format!("waits for a node for {pods}"),
            format!("no node is chosen for {pods}, and no event says why; see the scheduler's log"),
        );
    }
    (
        "the volume is being made".to_owned(),
        "no volume yet, and no event says why; see the log of hostloop's pods".to_owned(),
    )
}

/// True if nothing is to be done for the claim yet, however long that lasts and whatever failed
/// before.
fn waits_for_first_pod(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> bool {
    facts.pods.is_empty()
        && bound_volume(claim).is_none()
        && selected_node(claim).is_none()
        && binds_late(facts, claim)
}

/// True if the claim gets its volume only for a pod. Without the right to read classes, an event of
/// Kubernetes says so.
fn binds_late(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> bool {
    const LATE: &str = "WaitForFirstConsumer";
    match facts.class {
        Some(class) => class.volume_binding_mode.as_deref() == Some(LATE),
        None => events::has_reason(facts.events, claim, LATE),
    }
}

/// The node that the scheduler has chosen for a claim.
fn selected_node(claim: &PersistentVolumeClaim) -> Option<&String> {
    let node = claim.annotations().get(SELECTED_NODE);
    node.filter(|node| !node.is_empty())
}

fn bound(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> Verdict {
    let state = in_use(facts);
    if facts.volume.is_none() && facts.has_all_volumes {
        let name = bound_volume(claim).unwrap_or("of the claim");
        let why = format!("PersistentVolume {name} does not exist");
        return Verdict::stuck(VolumePhase::Lost, Stuck::new(why, None));
    }
    let stuck = (facts
        .volume
        .and_then(|volume| volume_failure(volume, facts.now_ns)))
    .or_else(|| attachments_failure(facts))
    .or_else(|| match &facts.on_node {
        OnNode::Missing(why) => Some(Stuck::new(why, None)),
        OnNode::Known(volume) => frozen(volume, facts.now_ns),
        OnNode::Unknown => None,
    })
    .or_else(|| pod_warning(facts).map(Stuck::from))
    .or_else(|| claim_failure(claim));
    if let Some(stuck) = stuck {
        return Verdict::stuck(state, stuck);
    }
    let warning = events::last_warning(facts.events, claim, bound_ns(facts.volume));
    let news = warning.filter(|w| facts.now_ns.saturating_sub(w.at_ns) < NEWS_NS);
    Verdict {
        note: news
            .map(|w| w.text)
            .or_else(|| progress(claim))
            .or_else(|| pod_warnings(facts).find(waits_its_turn).map(|w| w.text)),
        ..Verdict::fine(state)
    }
}

/// When a PersistentVolume was bound; 0 if that is unknown.
fn bound_ns(volume: Option<&PersistentVolume>) -> u64 {
    let changed = volume.and_then(phase_since);
    changed.or(volume.map(created_ns)).unwrap_or(0)
}

/// Since when a PersistentVolume has its phase.
fn phase_since(volume: &PersistentVolume) -> Option<u64> {
    let status = volume.status.as_ref()?;
    status.last_phase_transition_time.as_ref().map(ns)
}

/// A PersistentVolume without a claim, a volume that only its node has, or an inline volume.
fn without_claim(facts: &VolumeFacts<'_>) -> Verdict {
    let Some(volume) = facts.volume else {
        return without_objects(facts);
    };
    let state = match volume_phase(volume) {
        Some("Available") => VolumePhase::Available,
        Some("Bound") => in_use(facts),
        _ => VolumePhase::Released,
    };
    let since = phase_since(volume);
    let stuck = volume_failure(volume, facts.now_ns)
        .or_else(|| attachments_failure(facts))
        .or_else(|| {
            let since = since.unwrap_or(0);
            events::last_warning(facts.events, volume, since).map(Stuck::from)
        });
    if let Some(stuck) = stuck {
        return Verdict::stuck(state, stuck);
    }
    let policy = volume.spec.as_ref();
    let policy = policy.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    match (state, policy, facts.attachments.first()) {
        (VolumePhase::Released, Some("Retain"), _) => {
            Verdict::noted(state, "kept: its policy is Retain")
        }
        (VolumePhase::Released, _, Some(attachment)) => {
            let node = &attachment.spec.node_name;
            Verdict::noted(state, format!("waits for the detach from node {node}"))
        }
        (VolumePhase::Released, Some("Delete"), None) if is_overdue(since, facts.now_ns) => {
            let why = "it is not deleted, and no event says why; see the log of hostloop's pods";
            Verdict::stuck(state, Stuck::new(why, since))
        }
        _ => Verdict::fine(state),
    }
}

/// An inline volume, or a volume that only its node has.
fn without_objects(facts: &VolumeFacts<'_>) -> Verdict {
    let is_inline = matches!(&facts.on_node, OnNode::Known(volume) if volume.inline.is_some());
    let is_unclaimed = facts.has_all_volumes && !is_inline && facts.pods.is_empty();
    let state = if is_unclaimed {
        VolumePhase::Unclaimed
    } else {
        in_use(facts)
    };
    let stuck = pod_warning(facts)
        .map(Stuck::from)
        .or_else(|| facts.failed_call.clone())
        .or_else(|| match &facts.on_node {
            OnNode::Known(volume) => frozen(volume, facts.now_ns),
            OnNode::Missing(_) | OnNode::Unknown => None,
        });
    if let Some(stuck) = stuck {
        return Verdict::stuck(state, stuck);
    }
    if is_unclaimed {
        return Verdict::noted(state, "no PersistentVolume has it");
    }
    if is_inline && facts.pods.is_empty() {
        return Verdict::noted(state, "inline; its pod is not known");
    }
    Verdict::fine(state)
}

/// How far the volume is on its node. Without the node's report, a running pod proves that its
/// volumes are mounted.
fn in_use(facts: &VolumeFacts<'_>) -> VolumePhase {
    let has_running_pod = facts.pods.iter().any(|pod| phase(pod) == "Running");
    match &facts.on_node {
        OnNode::Known(volume) if is_reported_shared(volume) => {
            shared_in_use(volume, has_running_pod)
        }
        OnNode::Known(volume) if is_published(volume) => VolumePhase::Published,
        OnNode::Known(volume) if volume.staged_as.is_some() => VolumePhase::Staged,
        OnNode::Unknown if has_running_pod => VolumePhase::Published,
        OnNode::Unknown if facts.claim.is_none() && facts.volume.is_none() => VolumePhase::Pending,
        _ => VolumePhase::Bound,
    }
}

/// How far a volume is that several nodes can use. The node with its pool, which reports it, does not see
/// the mounts of the others.
fn shared_in_use(volume: &VolumeReport, has_running_pod: bool) -> VolumePhase {
    let is_in_use = volume.users.iter().any(|user| user.pins);
    match (is_in_use, has_running_pod) {
        (true, true) => VolumePhase::Published,
        (true, false) => VolumePhase::Staged,
        (false, _) => VolumePhase::Bound,
    }
}

/// True if a pod has the volume.
fn is_published(volume: &VolumeReport) -> bool {
    // An inline volume is staged at the pod's path.
    let is_inline = volume.inline.is_some();
    volume
        .mounts
        .iter()
        .any(|mount| is_inline || Some(mount) != volume.staged_at.as_ref())
}

/// True if this pod has the volume: kubelet's paths contain the pod's UID.
fn is_published_to(volume: &VolumeReport, pod: &Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    !uid.is_empty()
        && volume
            .mounts
            .iter()
            .any(|mount| mount.to_string_lossy().contains(uid))
}

/// The last warning of a pod that waits for the volume, unless it waits its turn.
fn pod_warning(facts: &VolumeFacts<'_>) -> Option<Warning> {
    pod_warnings(facts)
        .filter(|warning| !waits_its_turn(warning))
        .max_by_key(|warning| warning.at_ns)
}

/// True if the scheduler only holds the pod back until another one releases the claim, which is
/// what ReadWriteOncePod asks for. The words are those of Kubernetes.
fn waits_its_turn(warning: &Warning) -> bool {
    warning
        .text
        .contains("ReadWriteOncePod access mode already in-use by another pod")
}

/// The last warning of each pod that waits for the volume.
fn pod_warnings(facts: &VolumeFacts<'_>) -> impl Iterator<Item = Warning> {
    let waiting = facts.pods.iter().filter(move |pod| {
        let has_it = match &facts.on_node {
            OnNode::Known(volume) => is_published_to(volume, pod),
            _ => false,
        };
        phase(pod) == "Pending" && !has_it
    });
    waiting.filter_map(move |pod| {
        let event = events::last_warning_about_volumes(facts.events, pod);
        let warning = match (event, unschedulable(pod)) {
            // An event that is repeated keeps its first message; the condition has the last one.
            (Some(event), Some(now)) if event.text.starts_with("FailedScheduling: ") => Warning {
                text: format!("FailedScheduling: {}", message(now)),
                ..event
            },
            (Some(event), _) => event,
            (None, now) => {
                let now = now?;
                Warning {
                    text: format!("Unschedulable: {}", message(now)),
                    at_ns: now.last_transition_time.as_ref().map_or(0, ns),
                }
            }
        };
        Some(Warning {
            text: format!("pod {}: {}", pod.name_any(), warning.text),
            ..warning
        })
    })
}

/// What the scheduler says of a pod that fits nowhere, also after its event has gone.
fn unschedulable(pod: &Pod) -> Option<&PodCondition> {
    condition(pod, "PodScheduled", "False")
        .filter(|condition| condition.reason.as_deref() == Some("Unschedulable"))
}

fn message(condition: &PodCondition) -> &str {
    condition.message.as_deref().unwrap_or_default()
}

fn volume_failure(volume: &PersistentVolume, now_ns: u64) -> Option<Stuck> {
    let since = volume.metadata.deletion_timestamp.as_ref().map(ns);
    if is_overdue(since, now_ns) {
        let finalizers = volume.finalizers().join(", ");
        let why = format!(
            "PersistentVolume {} is being deleted and waits for the finalizers {finalizers}",
            volume.name_any()
        );
        return Some(Stuck::new(why, since));
    }
    let status = volume.status.as_ref()?;
    if status.phase.as_deref() != Some("Failed") {
        return None;
    }
    let message = status.message.clone().or_else(|| status.reason.clone());
    let why = format!(
        "PersistentVolume {} failed: {}",
        volume.name_any(),
        message.unwrap_or_else(|| "no reason is given".to_owned())
    );
    Some(Stuck {
        why,
        since_ns: status.last_phase_transition_time.as_ref().map(ns),
    })
}

fn attachments_failure(facts: &VolumeFacts<'_>) -> Option<Stuck> {
    facts
        .attachments
        .iter()
        .find_map(|attachment| attachment_stuck(attachment, facts.now_ns))
}

fn frozen(volume: &VolumeReport, now_ns: u64) -> Option<Stuck> {
    // The fault explains it, and ends it in time.
    let is_fault = volume.fault.as_ref().is_some_and(VolumeFault::is_freeze);
    let since_ns = volume.frozen_since_ns.filter(|_| !is_fault)?;
    let why = "its filesystem is frozen: writes wait".to_owned();
    (now_ns.saturating_sub(since_ns) > LONG_FREEZE_NS).then_some(Stuck {
        why,
        since_ns: Some(since_ns),
    })
}

/// What the conditions of a claim say about a failed change.
fn claim_failure(claim: &PersistentVolumeClaim) -> Option<Stuck> {
    let status = claim.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let failed = conditions.find(|condition| {
        let kinds = [
            "ControllerResizeError",
            "NodeResizeError",
            "ModifyVolumeError",
        ];
        condition.status == "True" && kinds.contains(&&*condition.type_)
    });
    if let Some(failed) = failed {
        let why = format!(
            "{}: {}",
            failed.type_,
            failed.message.as_deref().unwrap_or_default()
        );
        return Some(Stuck {
            why,
            since_ns: failed.last_transition_time.as_ref().map(ns),
        });
    }
    let resize = status
        .allocated_resource_statuses
        .as_ref()?
        .get("storage")?;
    let is_impossible = resize.ends_with("Infeasible") || resize.ends_with("Failed");
    is_impossible.then(|| Stuck {
        why: format!("{resize}: ask for a size that the pool has room for"),
        since_ns: None,
    })
}

/// A change of the claim that goes on.
fn progress(claim: &PersistentVolumeClaim) -> Option<String> {
    let status = claim.status.as_ref()?;
    let condition = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.status == "True");
    let what = match condition {
        Some(condition) => condition.type_.as_str(),
        None if is_to_grow(claim) => "Resizing",
        None => return None,
    };
    Some(match what {
        "Resizing" => "it is being expanded".to_owned(),
        "FileSystemResizePending" => "its filesystem grows when a pod uses it".to_owned(),
        "ModifyingVolume" => "its attributes are being changed".to_owned(),
        other => other.to_owned(),
    })
}

/// True if the claim asks for more than it has.
fn is_to_grow(claim: &PersistentVolumeClaim) -> bool {
    let asks = requested_size(claim).and_then(|size| quantity::bytes(&size.0));
    let has = present_size(claim).and_then(|size| quantity::bytes(&size.0));
    has.is_some() && asks > has
}

/// The pods' names in a sentence.
fn names(pods: &[&Pod]) -> String {
    let names: Vec<String> = pods.iter().map(|pod| pod.name_any()).collect();
    format!(
        "pod{} {}",
        if names.len() == 1 { "" } else { "s" },
        names.join(", ")
    )
}

#[cfg(test)]
mod tests;
