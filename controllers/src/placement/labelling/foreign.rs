//! Deletes PersistentVolumes of this driver that were made for another driver's claims.
//!
//! The PV controller binds a claim to any volume that names it, even to one of another driver. An
//! admission policy refuses that binding, but the claim stays pending as long as the volume exists.
//! Only a compromised node makes such a volume.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::Labelling;
use crate::api::constants::PROVISIONED_BY;
use crate::api::object_name::VolumeNaming;
use crate::api::{pv, pvc};
use crate::client::{ApiError, Resource};

const DELETED: &str = "VolumeOfForeignClaim";

/// The claim that a volume of this driver was made for, if the volume may still be bound to it.
///
/// The volume's name comes from the claim's UID. A released volume that an administrator binds to a
/// new claim keeps its name, so it does not count as made for that claim. The phase may be Bound:
/// the PV controller writes it before the admission policy refuses the binding.
fn made_for<'a>(
    volume: &'a PersistentVolume,
    driver: &str,
    naming: &VolumeNaming,
) -> Option<&'a ObjectReference> {
    let made_by = volume.annotations().get(PROVISIONED_BY)?;
    let claim = pv::claim(volume)?;
    let is_made_for = made_by == driver
        && !volume.is_deleting()
        && !matches!(pv::phase(volume), Some("Released" | "Failed"))
        && volume.name_any() == naming.volume(claim.uid.as_deref()?);
    is_made_for.then_some(claim)
}

/// True if the claim has this UID and waits for the volume of another provisioner.
fn is_foreign(claim: &PersistentVolumeClaim, uid: Option<&str>, driver: &str) -> bool {
    claim.metadata.uid.as_deref() == uid
        && pvc::volume_name(claim).is_none()
        && !pvc::is_for(claim, driver)
}

impl Labelling {
    /// Deletes the PersistentVolume if it was made for another driver's claim. Returns true if so.
    pub(super) async fn is_deleted_as_foreign(
        &self,
        volume: &PersistentVolume,
    ) -> Result<bool, ApiError> {
        let driver = &self.shared.context.driver.name;
        let Some(named) = made_for(volume, driver, &self.shared.options.naming) else {
            return Ok(false);
        };
        let uid = named.uid.as_deref();
        let namespace = named.namespace.as_deref().unwrap_or_default();
        let name = named.name.as_deref().unwrap_or_default();
        // A claim that is not cached may be newer than the cache.
        let seen = self.shared.context.caches.claims().get_in(namespace, name);
        if seen.is_some_and(|claim| !is_foreign(&claim, uid, driver)) {
            return Ok(false);
        }
        // The cluster may have assigned the claim to this driver in the meantime.
        let now: Option<PersistentVolumeClaim> = self.shared.kube.get(namespace, name).await?;
        let is_foreign = now.is_some_and(|claim| is_foreign(&claim, uid, driver));
        if !is_foreign || !self.shared.context.leader.leads() {
            return Ok(false);
        }
        self.shared.kube.delete_unchanged(volume).await?;
        let message = format!(
            "Deleted: it was made for claim {namespace}/{name}, which is not of driver {driver}; \
             check the node that made it"
        );
        tracing::warn!(volume = volume.name_any(), "{message}");
        self.shared.context.events.warning(volume, DELETED, message);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volumes_made_for_a_claim() {
        let naming: VolumeNaming = crate::testing::options();
        for (what, name, made_by, phase, made) in [
            ("new", "pvc-u", "d", "", true),
            ("available", "pvc-u", "d", "Available", true),
            ("bound, but not its claim", "pvc-u", "d", "Bound", true),
            ("released", "pvc-u", "d", "Released", false),
            ("failed", "pvc-u", "d", "Failed", false),
            ("made by another driver", "pvc-u", "e", "", false),
            ("made by hand", "data", "d", "", false),
            ("given to a new claim", "pvc-t", "d", "Available", false),
        ] {
            let volume = json!({
                "metadata": {"name": name, "annotations": {PROVISIONED_BY: made_by}},
                "spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "u"}},
                "status": {"phase": phase},
            });
            let volume = serde_json::from_value(volume).expect("a volume");
            let found = made_for(&volume, "d", &naming);
            assert_eq!(found.is_some(), made, "{what}");
        }
    }

    #[test]
    fn claims_of_other_drivers() {
        let of = |driver: &str| json!({"volume.kubernetes.io/storage-provisioner": driver});
        for (what, annotations, volume, uid, foreign) in [
            ("another driver's", of("e"), "", "u", true),
            ("no driver's yet", json!({}), "", "u", true),
            ("this driver's", of("d"), "", "u", false),
            ("bound", of("e"), "v", "u", false),
            ("another claim of that name", of("e"), "", "t", false),
        ] {
            let claim = json!({
                "metadata": {"namespace": "ns", "name": "c", "uid": "u", "annotations": annotations},
                "spec": {"volumeName": volume},
            });
            let claim = serde_json::from_value(claim).expect("a claim");
            assert_eq!(is_foreign(&claim, Some(uid), "d"), foreign, "{what}");
        }
    }
}
