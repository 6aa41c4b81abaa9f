//! The secrets that a class names for CSI calls. A class names them under a call's own keys, under
//! one pair of keys for all calls, or under deprecated keys.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;

use crate::api::secret_template::{TemplateError, Templates, Variables, key_of, parameters_of};

/// A call, or a pair of calls, that takes secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretPurpose {
    /// CreateVolume and DeleteVolume.
    Provisioner,
    /// ControllerPublishVolume and ControllerUnpublishVolume.
    ControllerPublish,
    /// NodeStageVolume.
    NodeStage,
    /// NodePublishVolume.
    NodePublish,
    /// ControllerExpandVolume.
    ControllerExpand,
    /// NodeExpandVolume.
    NodeExpand,
    /// ControllerModifyVolume.
    ControllerModify,
}

impl SecretPurpose {
    const ALL: [SecretPurpose; 7] = [
        SecretPurpose::Provisioner,
        SecretPurpose::ControllerPublish,
        SecretPurpose::NodeStage,
        SecretPurpose::NodePublish,
        SecretPurpose::ControllerExpand,
        SecretPurpose::NodeExpand,
        SecretPurpose::ControllerModify,
    ];

    /// The secret's key, and the beginning of the deprecated parameters, if there are any.
    fn keys(self) -> (&'static str, Option<&'static str>) {
        match self {
            SecretPurpose::Provisioner => ("provisioner-secret", Some("csiProvisionerSecret")),
            SecretPurpose::ControllerPublish => (
                "controller-publish-secret",
                Some("csiControllerPublishSecret"),
            ),
            SecretPurpose::NodeStage => ("node-stage-secret", Some("csiNodeStageSecret")),
            SecretPurpose::NodePublish => ("node-publish-secret", Some("csiNodePublishSecret")),
            SecretPurpose::ControllerExpand => ("controller-expand-secret", None),
            SecretPurpose::NodeExpand => ("node-expand-secret", None),
            SecretPurpose::ControllerModify => ("controller-modify-secret", None),
        }
    }
}

/// The key of the secret for all calls.
const COMMON: &str = "secret";

/// True if a class parameter names a secret under a current key.
pub(crate) fn is_key(parameter: &str) -> bool {
    let mut purposes = SecretPurpose::ALL.into_iter();
    key_of(parameter).is_some_and(|key| key == COMMON || purposes.any(|one| one.keys().0 == key))
}

/// The objects that templates are expanded for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemplateVars<'a> {
    pub(crate) volume: &'a str,
    pub(crate) claim: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) annotations: &'a BTreeMap<String, String>,
}

/// Returns the secret that a class names for a use, if any. The parameters for all uses count only
/// if the use has none of its own.
pub(crate) fn reference(
    of: SecretPurpose,
    parameters: &BTreeMap<String, String>,
    about: TemplateVars<'_>,
) -> Result<Option<SecretReference>, TemplateError> {
    let (key, old) = of.keys();
    let (new, all) = (parameters_of(key), parameters_of(COMMON));
    let old = old.map(|old| ["Name", "Namespace"].map(|end| format!("{old}{end}")));
    let templates = match Templates::of(parameters, &new, old.as_ref())? {
        Some(own) => Some(own),
        None => Templates::of(parameters, &all, None)?,
    };
    let list = [
        ("pv.name", about.volume, true),
        ("pvc.name", about.claim, false),
        ("pvc.namespace", about.namespace, true),
    ];
    let variables = Variables {
        list: &list,
        annotations: Some(about.annotations),
    };
    templates
        .map(|templates| templates.resolve(variables))
        .transpose()
}

#[cfg(test)]
mod tests;
