//! Decides how far a volume or a snapshot is, and why it does not go on.

use hostloop_api_objects::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use hostloop_report::status::VolumeReport;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use kube::ResourceExt;

use crate::events::{self, Warning};
use crate::verdict::{State, Stuck};
use crate::volume_objects::{bound_volume, created_ns, ns, phase};

/// After this time without progress and without a warning, something is stuck.
const PATIENCE_NS: u64 = 120_000_000_000;
/// A freeze lasts seconds. After this time, it is stuck.
const LONG_FREEZE_NS: u64 = 60_000_000_000;
/// An older warning about a bound claim is no longer news.
const NEWS_NS: u64 = 600_000_000_000;

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

/// The decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) state: State,
    pub(crate) stuck: Option<Stuck>,
    pub(crate) note: Option<String>,
}

impl Judgement {
    fn fine(state: State) -> Judgement {
        Judgement {
            state,
            ..Judgement::default()
        }
    }

    fn noted(state: State, note: impl Into<String>) -> Judgement {
        Judgement {
            note: Some(note.into()),
            ..Judgement::fine(state)
        }
    }

    fn stuck(state: State, stuck: impl Into<Stuck>) -> Judgement {
        Judgement {
            stuck: Some(stuck.into()),
            ..Judgement::fine(state)
        }
    }
}

impl Stuck {
    fn new(why: impl Into<String>, since_ns: Option<u64>) -> Stuck {
        Stuck {
            why: why.into(),
            since_ns,
        }
    }
}

impl From<Warning> for Stuck {
    fn from(warning: Warning) -> Stuck {
        Stuck::new(warning.text, Some(warning.at_ns))
    }
}

pub(crate) fn judge(facts: &VolumeFacts<'_>) -> Judgement {
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
            Judgement::stuck(State::Lost, Stuck::new(why, None))
        }
        _ if claim.metadata.deletion_timestamp.is_some() => deleting(facts, claim),
        "Bound" => bound(facts, claim),
        _ => pending(facts, claim),
    }
}

/// A claim that is being deleted waits for its pods.
fn deleting(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> Judgement {
    let since = claim.metadata.deletion_timestamp.as_ref().map(ns);
    if !facts.pods.is_empty() {
        let note = format!("waits for the end of {}", names(&facts.pods));
        return Judgement::noted(State::Deleting, note);
    }
    if is_overdue(since, facts.now_ns) {
        let finalizers = claim.finalizers().join(", ");
        let why = format!("its deletion waits for the finalizers {finalizers}");
        return Judgement::stuck(State::Deleting, Stuck::new(why, since));
    }
    Judgement::fine(State::Deleting)
}

fn pending(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> Judgement {
    let warning = events::last_warning(facts.events, claim).or_else(|| pod_warning(facts));
    if let Some(warning) = warning {
        return Judgement::stuck(State::Pending, warning);
    }
    let mode = facts
        .class
        .and_then(|class| class.volume_binding_mode.as_deref());
    if mode == Some("WaitForFirstConsumer") && facts.pods.is_empty() {
        return Judgement::noted(State::Pending, "waits for its first pod");
    }
    let since = created_ns(claim);
    if let Some(name) = bound_volume(claim) {
        let note = format!("waits for PersistentVolume {name}");
        return match is_overdue(Some(since), facts.now_ns) {
            true => Judgement::stuck(State::Pending, Stuck::new(note, Some(since))),
            false => Judgement::noted(State::Pending, note),
        };
    }
    if is_overdue(Some(since), facts.now_ns) {
        let why = "no volume yet, and no event says why; see the log of hostloop's pods";
        return Judgement::stuck(State::Pending, Stuck::new(why, Some(since)));
    }
    Judgement::noted(State::Pending, "the volume is being made")
}

fn bound(facts: &VolumeFacts<'_>, claim: &PersistentVolumeClaim) -> Judgement {
    let state = in_use(facts);
    if facts.volume.is_none() && facts.has_all_volumes {
        let name = bound_volume(claim).unwrap_or("of the claim");
        let why = format!("PersistentVolume {name} does not exist");
        return Judgement::stuck(State::Lost, Stuck::new(why, None));
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
        return Judgement::stuck(state, stuck);
    }
    let warning = events::last_warning(facts.events, claim);
    let news = warning.filter(|w| facts.now_ns.saturating_sub(w.at_ns) < NEWS_NS);
    Judgement {
        note: news.map(|w| w.text).or_else(|| progress(claim)),
        ..Judgement::fine(state)
    }
}

/// A PersistentVolume without a claim, a volume that only its node has, or an inline volume.
fn without_claim(facts: &VolumeFacts<'_>) -> Judgement {
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
        return Judgement::stuck(state, stuck);
    }
    let policy = volume.spec.as_ref();
    let policy = policy.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let since = volume
        .status
        .as_ref()
        .and_then(|s| s.last_phase_transition_time.as_ref())
        .map(ns);
    match (state, policy, facts.attachments.first()) {
        (State::Released, Some("Retain"), _) => {
            Judgement::noted(state, "kept: its policy is Retain")
        }
        (State::Released, _, Some(attachment)) => {
            let node = &attachment.spec.node_name;
            Judgement::noted(state, format!("waits for the detach from node {node}"))
        }
        (State::Released, Some("Delete"), None) if is_overdue(since, facts.now_ns) => {
            let why = "it is not deleted, and no event says why; see the log of hostloop's pods";
            Judgement::stuck(state, Stuck::new(why, since))
        }
        _ => Judgement::fine(state),
    }
}

/// An inline volume, or a volume that only its node has.
fn without_objects(facts: &VolumeFacts<'_>) -> Judgement {
    let is_inline = matches!(&facts.on_node, OnNode::Known(volume) if volume.inline.is_some());
    match (facts.pods.is_empty(), is_inline) {
        (false, _) => match pod_warning(facts) {
            Some(warning) => Judgement::stuck(in_use(facts), warning),
            None => Judgement::fine(in_use(facts)),
        },
        (true, true) => Judgement::noted(in_use(facts), "inline; its pod is not known"),
        (true, false) if facts.has_all_volumes => {
            Judgement::noted(State::Unclaimed, "no PersistentVolume has it")
        }
        (true, false) => Judgement::fine(in_use(facts)),
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

/// Why an attachment does not go on.
pub(crate) fn attachment_stuck(attachment: &VolumeAttachment, now_ns: u64) -> Option<Stuck> {
    let status = attachment.status.as_ref();
    let node = &attachment.spec.node_name;
    let attached = status.is_some_and(|status| status.attached);
    let attach_error = status.and_then(|status| status.attach_error.as_ref());
    let detach_error = status.and_then(|status| status.detach_error.as_ref());
    let (what, error) = match (attach_error, detach_error) {
        (Some(error), _) if !attached => ("attaching to", error),
        (_, Some(error)) => ("detaching from", error),
        _ => return attachment_overdue(attachment, attached, now_ns),
    };
    let message = error.message.as_deref().unwrap_or("no reason is given");
    let why = format!("{what} node {node}: {message}");
    Some(Stuck {
        why,
        since_ns: error.time.as_ref().map(ns),
    })
}

fn attachment_overdue(attachment: &VolumeAttachment, attached: bool, now_ns: u64) -> Option<Stuck> {
    let meta = &attachment.metadata;
    let (what, since) = match (&meta.deletion_timestamp, &meta.creation_timestamp) {
        (Some(deleted), _) => ("detaching from", ns(deleted)),
        (None, Some(created)) if !attached => ("attaching to", ns(created)),
        _ => return None,
    };
    let node = &attachment.spec.node_name;
    let why = format!("{what} node {node}, and no error says why; see the log of hostloop's pods");
    is_overdue(Some(since), now_ns).then(|| Stuck::new(why, Some(since)))
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

/// Why a snapshot is not ready.
pub(crate) fn snapshot_stuck(
    snapshot: Option<&VolumeSnapshot>,
    content: Option<&VolumeSnapshotContent>,
    events: &[Event],
    now_ns: u64,
) -> Option<Stuck> {
    let status = snapshot.and_then(|snapshot| snapshot.status.as_ref());
    let content_status = content.and_then(|content| content.status.as_ref());
    let ready = status.and_then(|status| status.ready_to_use);
    if ready.or(content_status.and_then(|status| status.ready_to_use)) == Some(true) {
        return None;
    }
    let error = status.and_then(|status| status.error.as_ref());
    let error = error.or_else(|| content_status.and_then(|status| status.error.as_ref()));
    if let Some(error) = error {
        let why = error
            .message
            .clone()
            .unwrap_or_else(|| "no reason is given".to_owned());
        return Some(Stuck {
            why,
            since_ns: error.time.as_ref().map(ns),
        });
    }
    let snapshot = snapshot?;
    if let Some(warning) = events::last_warning(events, snapshot) {
        return Some(warning.into());
    }
    let since = created_ns(snapshot);
    let why = match status {
        None => "not taken yet; does a snapshot controller run in the cluster?",
        Some(_) => "not taken yet, and no event says why; see the log of hostloop's pods",
    };
    is_overdue(Some(since), now_ns).then(|| Stuck {
        why: why.to_owned(),
        since_ns: Some(since),
    })
}

fn is_overdue(since_ns: Option<u64>, now_ns: u64) -> bool {
    since_ns.is_some_and(|since| now_ns.saturating_sub(since) > PATIENCE_NS)
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
