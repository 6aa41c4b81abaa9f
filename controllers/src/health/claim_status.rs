//! Writes the health of volumes into the status of their claims: `status.healthStatus`, which
//! Kubernetes 1.37 has with the feature gate `CSIVolumeHealth` (KEP-1432).
//!
//! Only the process that certainly owns a volume writes: another one does not find the volume, and
//! would take it for healthy. What a claim has is read from the API server at the start and then at
//! intervals. So the end of a problem is written even if no process saw it.
//!
//! An API server without the field drops it from a write, and changes nothing. The process sees that
//! in the answer, says so once, and tries again after [`RESYNC`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::decide::Facts;
use crate::client::ApiError;
use crate::controller::Context;

mod apply;
mod decide;
mod gather;

use apply::Written;
use decide::KnownHealth;

/// How often the claims are read, and how long it is taken for granted that the API server drops
/// their health.
pub(super) const RESYNC: Duration = Duration::from_secs(60 * 60);

/// What the claims of volumes have in their status.
#[derive(Debug, Default)]
pub(super) struct ClaimStatuses {
    /// By the UID of the PersistentVolume. Other claims have no health.
    known: BTreeMap<String, KnownHealth>,
    /// When the claims were last read.
    read: Option<Instant>,
    /// When the API server last dropped the health of a claim.
    dropped: Option<Instant>,
    /// True once the log has said that it is dropped.
    has_said_so: bool,
}

impl ClaimStatuses {
    /// The UIDs of the PersistentVolumes with a problem in the status of their claim.
    pub(super) fn abnormal(&self) -> impl Iterator<Item = &String> {
        self.known.keys()
    }

    /// Forgets what the claims have: another process writes it now.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.read = None;
    }

    /// Writes what is found of the `own` volumes, by the UIDs of their PersistentVolumes.
    pub(super) async fn write(&mut self, context: &Context, facts: &Facts, own: &BTreeSet<String>) {
        self.known.retain(|uid, _| own.contains(uid));
        for volume in facts.volumes.iter().filter(|it| own.contains(&it.uid)) {
            let Some(problems) = facts.found.get(&volume.handle) else {
                continue;
            };
            let (found, now) = (decide::conditions(problems), Instant::now());
            let is_dropped = decide::is_recent(self.dropped, now) && !found.is_empty();
            if is_dropped || !decide::is_due(self.known.get(&volume.uid), &found, now) {
                continue;
            }
            // The leadership may have been lost during the calls before.
            if !context.acts() {
                return;
            }
            let known = KnownHealth {
                conditions: found,
                since: now,
            };
            match apply::write(context, volume, &known.conditions).await {
                Ok(Written::Stored) => self.stored(&volume.uid, known),
                Ok(Written::Dropped) => self.dropped(now),
                // Another claim has the name.
                Ok(Written::NotBound) | Err(ApiError::NotFound { .. }) => {
                    self.known.remove(&volume.uid);
                }
                // The next pass reads the claim again.
                Err(error @ ApiError::Conflict { .. }) => {
                    tracing::debug!(volume = volume.name, %error, "the claim has changed meanwhile");
                }
                Err(error) => {
                    tracing::warn!(volume = volume.name, %error, "cannot write the volume's health to its claim");
                    // It would be refused again.
                    if matches!(error, ApiError::Rejected { .. }) {
                        self.stored(&volume.uid, known);
                    }
                }
            }
        }
    }

    fn stored(&mut self, uid: &str, known: KnownHealth) {
        if known.conditions.is_empty() {
            self.known.remove(uid);
        } else {
            self.known.insert(uid.to_owned(), known);
        }
    }

    fn dropped(&mut self, now: Instant) {
        self.dropped = Some(now);
        if !std::mem::replace(&mut self.has_said_so, true) {
            tracing::info!(
                "the API server does not store the health of claims: that needs Kubernetes 1.37 with \
                 the feature gate CSIVolumeHealth. Events and metrics show it"
            );
        }
    }
}
