//! The faults that classes have for their claims.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use crate::api::claim_fault::CLASS_PARAMETER;
use crate::api::pvc;
use crate::cache::Store;

/// The classes of a driver. Clones share them.
#[derive(Clone)]
pub(super) struct ClassPresets {
    classes: Store<StorageClass>,
    driver: String,
}

impl ClassPresets {
    pub(super) fn new(classes: Store<StorageClass>, driver: &str) -> Self {
        ClassPresets {
            classes,
            driver: driver.to_owned(),
        }
    }

    pub(super) async fn synced(&self) {
        self.classes.synced().await;
    }

    /// The parameter with the fault, if the claim's class has one and this driver serves it.
    pub(super) fn of(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let class = self.classes.get(pvc::class_name(claim)?)?;
        let parameters = class.parameters.as_ref()?;
        let preset = parameters.get(CLASS_PARAMETER)?;
        (class.provisioner == self.driver).then(|| preset.clone())
    }
}
