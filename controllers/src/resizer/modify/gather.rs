//! Gathers the class that a claim requests.

use std::sync::Arc;

use k8s_openapi::api::storage::v1::VolumeAttributesClass;

use crate::client::ApiError;
use crate::resizer::Resizer;

/// Why a VolumeAttributesClass can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnusableClass {
    #[error("There is no VolumeAttributesClass {0:?}")]
    Missing(String),
    #[error("VolumeAttributesClass {name:?} is for CSI driver {driver}")]
    Foreign { name: String, driver: String },
}

impl Resizer {
    /// Looks up a class. The class watch may lag behind the claim watch.
    pub(super) async fn gather_class(
        &self,
        name: &str,
    ) -> Result<Result<Arc<VolumeAttributesClass>, UnusableClass>, ApiError> {
        let watch = &self.classes().watch;
        let Some(class) = self.kube.find_live(watch, "", name).await? else {
            return Ok(Err(UnusableClass::Missing(name.to_owned())));
        };
        if class.driver_name != self.context.driver.name {
            return Ok(Err(UnusableClass::Foreign {
                name: name.to_owned(),
                driver: class.driver_name.clone(),
            }));
        }
        Ok(Ok(class))
    }
}
