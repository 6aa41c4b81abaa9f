//! How far a volume is, and why it does not go on.

use hostloop_report::status::VolumeReport;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use kube::ResourceExt;

use crate::events::{self, Warning};
use crate::verdict::{
    LONG_FREEZE_NS, NEWS_NS, State, Stuck, Verdict, attachment_stuck, is_overdue,
};
use crate::volume_objects::{bound_volume, created_ns, ns, phase};

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
            Verdict::stuck(State::Lost, Stuck::new(why, None))
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
        return Verdict::noted(State::Deleting, note);
    }
    if is_overdue(since, facts.now_ns) {
        let finalizers = claim.finalizers().join(", ");
        let why = format!("its deletion waits for the finalizers {finalizers}");
        return Verdict::stuck(State::Deleting, Stuck::new(why, since));
    }
    Verdict::fine(State::Deleting)
}

fn pending(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> Verdict {
    let warning = events::last_warning(facts.events, claim).or_else(|| pod_warning(facts));
    if let Some(warning) = warning {
        return Verdict::stuck(State::Pending, warning);
    }
    let mode = facts
        .class
        .and_then(|class| class.volume_binding_mode.as_deref());
    if mode == Some("WaitForFirstConsumer") && facts.pods.is_empty() {
        return Verdict::noted(State::Pending, "waits for its first pod");
    }
    let since = created_ns(claim);
    if let Some(name) = bound_volume(claim) {
        let note = format!("waits for PersistentVolume {name}");
        return match is_overdue(Some(since), facts.now_ns) {
            true => Verdict::stuck(State::Pending, Stuck::new(note, Some(since))),
            false => Verdict::noted(State::Pending, note),
        };
    }
    if is_overdue(Some(since), facts.now_ns) {
        let why = "no volume yet, and no event says why; see the log of hostloop's pods";
        return Verdict::stuck(State::Pending, Stuck::new(why, Some(since)));
    }
    Verdict::noted(State::Pending, "the volume is being made")
}

fn bound(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> Verdict {
    let state = in_use(facts);
    if facts.volume.is_none() && facts.has_all_volumes {
        let name = bound_volume(claim).unwrap_or("of the claim");
        let why = format!("PersistentVolume {name} does not exist");
        return Verdict::stuck(State::Lost, Stuck::new(why, None));
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
    let warning = events::last_warning(facts.events, claim);
    let news = warning.filter(|w| facts.now_ns.saturating_sub(w.at_ns) < NEWS_NS);
    Verdict {
        note: news.map(|w| w.text).or_else(|| progress(claim)),
        ..Verdict::fine(state)
    }
}

/// A PersistentVolume without a claim, a volume that only its node has, or an inline volume.
fn without_claim(facts: &VolumeFacts<'_>) -> Verdict {
    let Some(volume) = facts.volume else {
        return without_objects(facts);
    };
    let phase = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let state = match phase {
        Some("Available") => State::Available,
        Some("Bound") => in_use(facts),
        _ => State::Released,
    };
    let stuck = volume_failure(volume, facts.now_ns)
        .or_else(|| attachments_failure(facts))
        .or_else(|| events::last_warning(facts.events, volume).map(Stuck::from));
    if let Some(stuck) = stuck {
        return Verdict::stuck(state, stuck);
    }
    let policy = volume.spec.as_ref();
    let policy = policy.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let since = volume
        .status
        .as_ref()
        .and_then(|s| s.last_phase_transition_time.as_ref())
        .map(ns);
    match (state, policy, facts.attachments.first()) {
        (State::Released, Some("Retain"), _) => Verdict::noted(state, "kept: its policy is Retain"),
        (State::Released, _, Some(attachment)) => {
            let node = &attachment.spec.node_name;
            Verdict::noted(state, format!("waits for the detach from node {node}"))
        }
        (State::Released, Some("Delete"), None) if is_overdue(since, facts.now_ns) => {
            let why = "it is not deleted, and no event says why; see the log of hostloop's pods";
            Verdict::stuck(state, Stuck::new(why, since))
        }
        _ => Verdict::fine(state),
    }
}

/// An inline volume, or a volume that only its node has.
fn without_objects(facts: &VolumeFacts<'_>) -> Verdict {
    let is_inline = matches!(&facts.on_node, OnNode::Known(volume) if volume.inline.is_some());
    match (facts.pods.is_empty(), is_inline) {
        (false, _) => match pod_warning(facts) {
            Some(warning) => Verdict::stuck(in_use(facts), warning),
            None => Verdict::fine(in_use(facts)),
        },
        (true, true) => Verdict::noted(in_use(facts), "inline; its pod is not known"),
        (true, false) if facts.has_all_volumes => {
            Verdict::noted(State::Unclaimed, "no PersistentVolume has it")
        }
        (true, false) => Verdict::fine(in_use(facts)),
    }
}

/// How far the volume is on its node. Without the node's report, a running pod proves that its
/// volumes are mounted.
fn in_use(facts: &VolumeFacts<'_>) -> State {
    match &facts.on_node {
        OnNode::Known(volume) if is_published(volume) => State::Published,
        OnNode::Known(volume) if volume.staged_as.is_some() => State::Staged,
        OnNode::Unknown if facts.pods.iter().any(|pod| phase(pod) == "Running") => State::Published,
        OnNode::Unknown if facts.claim.is_none() && facts.volume.is_none() => State::Pending,
        _ => State::Bound,
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

/// The last warning of a pod that waits for the volume.
fn pod_warning(facts: &VolumeFacts<'_>) -> Option<Warning> {
    let waits = |pod: &&&Pod| {
        let has_it = match &facts.on_node {
            OnNode::Known(volume) => is_published_to(volume, pod),
            _ => false,
        };
        phase(pod) == "Pending" && !has_it
    };
    let waiting = facts.pods.iter().filter(waits);
    let warnings = waiting.filter_map(|pod| {
        let warning = events::last_warning_about_volumes(facts.events, pod)?;
        Some(Warning {
            text: format!("pod {}: {}", pod.name_any(), warning.text),
            ..warning
        })
    });
    warnings.max_by_key(|warning| warning.at_ns)
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
    let since_ns = volume.frozen_since_ns?;
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
        .find(|c| c.status == "True")?;
    Some(match condition.type_.as_str() {
        "Resizing" => "it is being expanded".to_owned(),
        "FileSystemResizePending" => "its filesystem grows when a pod uses it".to_owned(),
        "ModifyingVolume" => "its attributes are being changed".to_owned(),
        other => other.to_owned(),
    })
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
