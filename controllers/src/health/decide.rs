//! Decides which health events to emit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use hostloop_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use hostloop_proto::csi::{StorageHealthErrorType, VolumeHealthErrorType};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::ResourceExt;
use tokio::time::Instant;

use crate::api::pv;
use crate::client::Resource;

/// How often a lasting condition is reported again. API servers keep an event for an hour.
pub(super) const REPEAT: Duration = Duration::from_secs(30 * 60);

/// A bound volume that the watcher checks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Volume {
    /// The PV's UID.
    pub(super) uid: String,
    /// The PV's name.
    pub(super) name: String,
    /// The CSI volume handle. Several PVs may share one.
    pub(super) handle: String,
    /// The claim it is bound to.
    pub(super) claim: ObjectReference,
}

/// A problem that the driver reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthProblem {
    /// The severity, in one word.
    pub(super) status: &'static str,
    /// The kind of problem, in one word.
    pub(super) reason: String,
    /// Details for people.
    pub(super) message: String,
}

/// A condition that was reported.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    /// The PV's name; empty for storage.
    pub(super) volume: String,
    /// The latest problems.
    pub(super) problems: Vec<HealthProblem>,
    /// When the condition was last reported.
    pub(super) reported: Instant,
}

/// The volumes, and what is found of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) volumes: Vec<Volume>,
    /// The problems of volumes, by their handles. A volume that could not be asked for has no
    /// entry.
    pub(super) found: HashMap<String, Vec<HealthProblem>>,
}

/// Conditions of volumes, by the PV's UID.
pub(super) type KnownConditions = BTreeMap<String, Condition>;

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    /// The object has the problems in this text.
    Abnormal(String),
    /// All problems are gone.
    Normal,
}

impl Volume {
    /// Returns a bound PV of this driver.
    pub(super) fn bound(volume: &PersistentVolume, driver: &str) -> Option<Volume> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == driver)?;
        let bound = pv::phase(volume) == Some("Bound") && !volume.is_deleting();
        let claim = spec.claim_ref.as_ref().filter(|_| bound)?;
        Some(Volume {
            uid: volume.uid()?,
            name: volume.name_any(),
            handle: csi.volume_handle.clone(),
            claim: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                // The claim may have changed since it was bound, so that version is useless.
                resource_version: None,
                ..claim.clone()
            },
        })
    }
}

impl HealthProblem {
    /// The problem for a volume that the driver does not know.
    pub(super) fn volume_not_found() -> HealthProblem {
        HealthProblem {
            status: "Inaccessible",
            reason: "VolumeNotFound".to_owned(),
            message: "the driver knows no such volume".to_owned(),
        }
    }
}

impl From<VolumeHealthEntry> for HealthProblem {
    fn from(entry: VolumeHealthEntry) -> HealthProblem {
        let status = match entry.status() {
            VolumeHealthErrorType::UnknownVolumeHealthType => "Unknown",
            VolumeHealthErrorType::Degraded => "Degraded",
            VolumeHealthErrorType::Inaccessible => "Inaccessible",
            VolumeHealthErrorType::DataLoss => "DataLoss",
        };
        HealthProblem {
            status,
            reason: entry.reason,
            message: entry.message,
        }
    }
}

impl From<StorageBackendHealth> for HealthProblem {
    fn from(entry: StorageBackendHealth) -> HealthProblem {
        let status = match entry.status() {
            StorageHealthErrorType::UnknownStorageHealthErrorType => "Unknown",
            StorageHealthErrorType::StorageDegraded => "Degraded",
            StorageHealthErrorType::StorageUnreachable => "Unreachable",
        };
        HealthProblem {
            status,
            reason: entry.reason,
            message: entry.message,
        }
    }
}

/// Decides which volume events to emit, and updates `known`. A volume without an entry in `found`
/// keeps its condition: an empty entry means healthy. Deleted volumes are removed from `known`.
pub(super) fn volume_changes(
    known: &mut KnownConditions,
    facts: &Facts,
    now: Instant,
) -> Vec<(ObjectReference, HealthChange)> {
    let Facts { volumes, found } = facts;
    let uids: BTreeSet<&str> = volumes.iter().map(|volume| volume.uid.as_str()).collect();
    known.retain(|uid, _| uids.contains(uid.as_str()));
    let mut changes = Vec::new();
    for volume in volumes {
        let Some(problems) = found.get(&volume.handle) else {
            continue;
        };
        let mut condition = known.remove(&volume.uid);
        if let Some(change) = condition_change(&mut condition, problems, now) {
            changes.push((volume.claim.clone(), change));
        }
        if let Some(condition) = condition {
            let condition = Condition {
                volume: volume.name.clone(),
                ..condition
            };
            known.insert(volume.uid.clone(), condition);
        }
    }
    changes
}

/// Decides which event to emit for one object, and updates its condition.
pub(super) fn condition_change(
    known: &mut Option<Condition>,
    problems: &[HealthProblem],
    now: Instant,
) -> Option<HealthChange> {
    if problems.is_empty() {
        return known.take().map(|_| HealthChange::Normal);
    }
    // Compare only the kinds, because messages contain numbers that change constantly.
    let reported = known.as_ref().filter(|known| {
        kinds(&known.problems) == kinds(problems) && now.duration_since(known.reported) < REPEAT
    });
    let reported = reported.map(|known| known.reported);
    *known = Some(Condition {
        volume: String::new(),
        problems: problems.to_vec(),
        reported: reported.unwrap_or(now),
    });
    reported
        .is_none()
        .then(|| HealthChange::Abnormal(text(problems)))
}

/// The kinds of problems, without their messages.
pub(super) fn kinds(problems: &[HealthProblem]) -> BTreeSet<(&str, &str)> {
    problems
        .iter()
        .map(|problem| (problem.status, problem.reason.as_str()))
        .collect()
}

fn text(problems: &[HealthProblem]) -> String {
    let lines = problems.iter().map(
        |HealthProblem {
             status,
             reason,
             message,
         }| match message.as_str() {
            "" => format!("{status}: {reason}"),
            message => format!("{status}: {reason}: {message}"),
        },
    );
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
