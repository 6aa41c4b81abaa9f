//! Reads what the claims of volumes have in their status.

use std::collections::{BTreeSet, HashMap};

use kube::ResourceExt;
use tokio::time::Instant;

use super::ClaimStatuses;
use super::decide::{self, KnownHealth};
use crate::api::claim_health::HealthClaim;
use crate::api::scope::{NODE_LABEL, node_label};
use crate::client::ApiError;
use crate::controller::Context;
use crate::health::decide::Volume;
use crate::kept_fields::CLAIM_HEALTH;

/// Volumes by the namespaces and names of their claims.
type VolumesByClaim<'a> = HashMap<(String, String), &'a Volume>;

impl ClaimStatuses {
    /// Reads the claims of the `own` volumes, if that is due.
    pub(in crate::health) async fn read(
        &mut self,
        context: &Context,
        volumes: &[Volume],
        own: &BTreeSet<String>,
    ) {
        let now = Instant::now();
        if decide::is_recent(self.read, now) {
            return;
        }
        let volumes = volumes.iter().filter(|volume| own.contains(&volume.uid));
        let unread = volumes.map(|volume| (claim_of(volume), volume)).collect();
        match self.read_all(context, unread, now).await {
            Ok(()) => self.read = Some(now),
            Err(error) => {
                tracing::warn!(%error, "cannot read the health in the status of claims");
                // It would be refused again.
                if matches!(error, ApiError::Rejected { .. }) {
                    self.read = Some(now);
                }
            }
        }
    }

    async fn read_all(
        &mut self,
        context: &Context,
        mut unread: VolumesByClaim<'_>,
        now: Instant,
    ) -> Result<(), ApiError> {
        if unread.is_empty() {
            return Ok(());
        }
        let kube = &context.kube;
        let labels = match context.scope.node() {
            Some(node) => format!("{NODE_LABEL}={}", node_label(node)),
            None => String::new(),
        };
        let mut found: Vec<(&Volume, HealthClaim)> = Vec::new();
        kube.each_fields::<HealthClaim>(&labels, &CLAIM_HEALTH, |claim| {
            let key = (claim.namespace().unwrap_or_default(), claim.name_any());
            found.extend(unread.remove(&key).map(|volume| (volume, claim)));
        })
        .await?;
        // A claim that was bound by hand may have no label.
        for ((namespace, name), volume) in unread {
            let claim = kube
                .get_fields::<HealthClaim>(&namespace, &name, &CLAIM_HEALTH)
                .await?;
            found.extend(claim.map(|claim| (volume, claim)));
        }
        self.known.clear();
        for (volume, claim) in found {
            let conditions = decide::conditions_of(claim.status.health_status.as_ref());
            if is_bound_to(&claim, volume) && !conditions.is_empty() {
                let known = KnownHealth {
                    conditions,
                    since: now,
                };
                self.known.insert(volume.uid.clone(), known);
            }
        }
        Ok(())
    }
}

/// The namespace and the name of a volume's claim.
pub(super) fn claim_of(volume: &Volume) -> (String, String) {
    let claim = &volume.claim;
    let (namespace, name) = (claim.namespace.as_ref(), claim.name.as_ref());
    (
        namespace.cloned().unwrap_or_default(),
        name.cloned().unwrap_or_default(),
    )
}

/// True if a claim is bound to a volume that names it.
pub(super) fn is_bound_to(claim: &HealthClaim, volume: &Volume) -> bool {
    claim.status.phase.as_deref() == Some("Bound")
        && claim.spec.volume_name.as_deref() == Some(volume.name.as_str())
        && claim.metadata.uid == volume.claim.uid
}
