//! Deletes PersistentVolumes of this driver that were made for another driver's claims.
//!
//! The PV controller binds a claim to any volume that names it, whatever the driver of either. An
//! admission policy refuses that binding, but the claim stays pending as long as the volume exists.
//! Only a compromised node makes such a volume.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::Placement;
use crate::provisioner::claim;
use crate::provisioner::names::PROVISIONED_BY;
use crate::runtime::ApiError;

const DELETED: &str = "VolumeOfForeignClaim";

/// True if this driver made the volume for this claim, but the claim waits for another provisioner.
fn is_foreign(volume: &PersistentVolume, claim: &PersistentVolumeClaim, driver: &str) -> bool {
    let made_by = volume.annotations().get(PROVISIONED_BY);
    let phase = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let spec = volume.spec.as_ref();
    let named = spec.and_then(|spec| spec.claim_ref.as_ref()?.uid.as_ref());
    made_by.is_some_and(|by| by == driver)
        && volume.metadata.deletion_timestamp.is_none()
        && matches!(phase, None | Some("Pending" | "Available"))
        && named.is_some()
        && named == claim.metadata.uid.as_ref()
        && claim::volume_name(claim).is_none()
        && !claim::is_for(claim, driver)
}

impl Placement {
    /// Deletes the PersistentVolume if it was made for another driver's claim. Returns true if so.
    pub(super) async fn is_deleted_as_foreign(
        &self,
        volume: &PersistentVolume,
    ) -> Result<bool, ApiError> {
        let driver = &self.context.driver.name;
        let spec = volume.spec.as_ref();
        let Some(named) = spec.and_then(|spec| spec.claim_ref.as_ref()) else {
            return Ok(false);
        };
        let namespace = named.namespace.as_deref().unwrap_or_default();
        let name = named.name.as_deref().unwrap_or_default();
        let seen = self.context.caches.claims().get_in(namespace, name);
        if !seen.is_some_and(|claim| is_foreign(volume, &claim, driver)) {
            return Ok(false);
        }
        // The cluster may have assigned the claim to this driver in the meantime.
        let now: Option<PersistentVolumeClaim> = self.kube.get(namespace, name).await?;
        let is_foreign = now.is_some_and(|claim| is_foreign(volume, &claim, driver));
        if !is_foreign || !self.context.leader.leads() {
            return Ok(false);
        }
        self.kube.delete_unchanged(volume).await?;
        let message = format!(
            "Deleted: it was made for claim {namespace}/{name}, which is not of driver {driver}; \
             check the node that made it"
        );
        tracing::warn!(volume = volume.name_any(), "{message}");
        self.context.events.warning(volume, DELETED, message);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn volumes_for_claims_of_other_drivers() {
        let ours = json!({"volume.kubernetes.io/storage-provisioner": "d"});
        let theirs = json!({"volume.kubernetes.io/storage-provisioner": "e"});
        let cases: [(&str, &str, &str, &str, Value, Value, bool); 9] = [
            (
                "another driver's",
                "d",
                "",
                "u",
                theirs.clone(),
                Value::Null,
                true,
            ),
            (
                "nobody's",
                "d",
                "Available",
                "u",
                json!({}),
                Value::Null,
                true,
            ),
            ("ours", "d", "", "u", ours, Value::Null, false),
            (
                "made by others",
                "e",
                "",
                "u",
                theirs.clone(),
                Value::Null,
                false,
            ),
            (
                "made by hand",
                "",
                "",
                "u",
                theirs.clone(),
                Value::Null,
                false,
            ),
            (
                "bound",
                "d",
                "Bound",
                "u",
                theirs.clone(),
                Value::Null,
                false,
            ),
            (
                "released",
                "d",
                "Released",
                "u",
                theirs.clone(),
                Value::Null,
                false,
            ),
            (
                "of an older claim",
                "d",
                "",
                "v",
                theirs.clone(),
                Value::Null,
                false,
            ),
            ("has one", "d", "", "u", theirs, json!("v"), false),
        ];
        for (what, made_by, phase, uid, annotations, has, expected) in cases {
            let mut volume = json!({
                "metadata": {"name": "v", "annotations": {PROVISIONED_BY: made_by}},
                "spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": uid}},
            });
            if !phase.is_empty() {
                volume["status"] = json!({"phase": phase});
            }
            let volume = serde_json::from_value(volume).expect("a volume");
            let claim = json!({
                "metadata": {"namespace": "ns", "name": "c", "uid": "u", "annotations": annotations},
                "spec": {"volumeName": has},
            });
            let claim = serde_json::from_value(claim).expect("a claim");
            assert_eq!(is_foreign(&volume, &claim, "d"), expected, "{what}");
        }
    }
}
