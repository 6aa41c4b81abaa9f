//! What is to be told.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use hostloop_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use hostloop_proto::csi::{StorageHealthErrorType, VolumeHealthErrorType};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::ResourceExt;
use tokio::time::Instant;

/// How often a condition that lasts is told again. API servers keep an event for an hour.
pub(super) const REPEAT: Duration = Duration::from_secs(30 * 60);

/// A volume whose health is of interest.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Volume {
    /// The PV's UID.
    pub(super) uid: String,
    /// Its name.
    pub(super) name: String,
    /// The driver's name for it. PVs may share one.
    pub(super) handle: String,
    /// The claim it is bound to.
    pub(super) claim: ObjectReference,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// How bad it is, in a word.
    pub(super) status: &'static str,
    /// What it is, in a word.
    pub(super) reason: String,
    /// What it is, for people.
    pub(super) message: String,
}

/// A condition that was told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    /// The PV's name; empty for storage.
    pub(super) volume: String,
    /// Who was told.
    pub(super) claim: ObjectReference,
    /// What was found last.
    pub(super) findings: Vec<Finding>,
    /// When it was told last.
    pub(super) told: Instant,
}

/// Those of volumes, by the PVs' UIDs.
pub(super) type Known = BTreeMap<String, Condition>;

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Something is wrong, namely this.
    Abnormal(String),
    /// Nothing is, any more.
    Normal,
}

impl Volume {
    /// A PV of this driver that is bound.
    pub(super) fn bound(volume: &PersistentVolume, driver: &str) -> Option<Volume> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == driver)?;
        let phase = volume.status.as_ref()?.phase.as_deref()?;
        let bound = phase == "Bound" && volume.metadata.deletion_timestamp.is_none();
        let claim = spec.claim_ref.as_ref().filter(|_| bound)?;
        Some(Volume {
            uid: volume.uid()?,
            name: volume.name_any(),
            handle: csi.volume_handle.clone(),
            claim: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                // A version of long ago would say nothing.
                resource_version: None,
                ..claim.clone()
            },
        })
    }
}

impl Finding {
    /// A volume the driver knows nothing of.
    pub(super) fn volume_not_found() -> Finding {
        Finding {
            status: "Inaccessible",
            reason: "VolumeNotFound".to_owned(),
            message: "the driver knows no such volume".to_owned(),
        }
    }
}

impl From<VolumeHealthEntry> for Finding {
    fn from(entry: VolumeHealthEntry) -> Finding {
        let status = match entry.status() {
            VolumeHealthErrorType::UnknownVolumeHealthType => "Unknown",
            VolumeHealthErrorType::Degraded => "Degraded",
            VolumeHealthErrorType::Inaccessible => "Inaccessible",
            VolumeHealthErrorType::DataLoss => "DataLoss",
        };
        Finding {
            status,
            reason: entry.reason,
            message: entry.message,
        }
    }
}

impl From<StorageBackendHealth> for Finding {
    fn from(entry: StorageBackendHealth) -> Finding {
        let status = match entry.status() {
            StorageHealthErrorType::UnknownStorageHealthErrorType => "Unknown",
            StorageHealthErrorType::StorageDegraded => "Degraded",
            StorageHealthErrorType::StorageUnreachable => "Unreachable",
        };
        Finding {
            status,
            reason: entry.reason,
            message: entry.message,
        }
    }
}

/// What is to be told of volumes after what was found for their handles, and what is known from
/// then on. A handle for which nothing was found out, not even that it is well, stays as it was; a
/// volume that is gone is forgotten.
pub(super) fn judge(
    known: &mut Known,
    volumes: &[Volume],
    found: &HashMap<String, Vec<Finding>>,
    now: Instant,
) -> Vec<(ObjectReference, Change)> {
    let uids: BTreeSet<&str> = volumes.iter().map(|volume| volume.uid.as_str()).collect();
    known.retain(|uid, _| uids.contains(uid.as_str()));
    let mut changes = Vec::new();
    for volume in volumes {
        let Some(findings) = found.get(&volume.handle) else {
            continue;
        };
        let mut condition = known.remove(&volume.uid);
        if let Some(change) = judge_one(&mut condition, findings, now) {
            changes.push((volume.claim.clone(), change));
        }
        if let Some(condition) = condition {
            let condition = Condition {
                volume: volume.name.clone(),
                claim: volume.claim.clone(),
                ..condition
            };
            known.insert(volume.uid.clone(), condition);
        }
    }
    changes
}

/// What is to be told of one thing, and its condition from then on.
pub(super) fn judge_one(
    known: &mut Option<Condition>,
    findings: &[Finding],
    now: Instant,
) -> Option<Change> {
    if findings.is_empty() {
        return known.take().map(|_| Change::Normal);
    }
    // Messages have numbers that change all the time; what it is does not.
    let told = known.as_ref().filter(|known| {
        kinds(&known.findings) == kinds(findings) && now.duration_since(known.told) < REPEAT
    });
    let told = told.map(|known| known.told);
    *known = Some(Condition {
        volume: String::new(),
        claim: ObjectReference::default(),
        findings: findings.to_vec(),
        told: told.unwrap_or(now),
    });
    told.is_none().then(|| Change::Abnormal(text(findings)))
}

/// What is wrong, without what is said of it.
pub(super) fn kinds(findings: &[Finding]) -> BTreeSet<(&str, &str)> {
    findings
        .iter()
        .map(|finding| (finding.status, finding.reason.as_str()))
        .collect()
}

fn text(findings: &[Finding]) -> String {
    let lines = findings.iter().map(
        |Finding {
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
