//! The secrets that a class names for CSI calls. A class names them under a call's own keys, under
//! one pair of keys for all calls, or under deprecated keys.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;

use crate::api::names::RESERVED;
use crate::api::secret_template::{TemplateError, Templates, Variables};

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

    fn word(self) -> &'static str {
        match self {
            SecretPurpose::Provisioner => "provisioner",
            SecretPurpose::ControllerPublish => "controller-publish",
            SecretPurpose::NodeStage => "node-stage",
            SecretPurpose::NodePublish => "node-publish",
            SecretPurpose::ControllerExpand => "controller-expand",
            SecretPurpose::NodeExpand => "node-expand",
            SecretPurpose::ControllerModify => "controller-modify",
        }
    }

    /// The prefix of the deprecated keys; `None` for calls that never had such keys.
    fn old(self) -> Option<&'static str> {
        match self {
            SecretPurpose::Provisioner => Some("csiProvisionerSecret"),
            SecretPurpose::ControllerPublish => Some("csiControllerPublishSecret"),
            SecretPurpose::NodeStage => Some("csiNodeStageSecret"),
            SecretPurpose::NodePublish => Some("csiNodePublishSecret"),
            SecretPurpose::ControllerExpand
            | SecretPurpose::NodeExpand
            | SecretPurpose::ControllerModify => None,
        }
    }

    fn keys(self) -> Keys {
        let word = self.word();
        Keys {
            name: format!("{RESERVED}{word}-secret-name"),
            namespace: format!("{RESERVED}{word}-secret-namespace"),
        }
    }
}

/// The two parameters that name a secret.
struct Keys {
    name: String,
    namespace: String,
}

impl Keys {
    fn for_all() -> Self {
        Keys {
            name: format!("{RESERVED}secret-name"),
            namespace: format!("{RESERVED}secret-namespace"),
        }
    }

    fn old(prefix: &str) -> Self {
        Keys { name: format!("{prefix}Name"), namespace: format!("{prefix}Namespace") }
    }

    fn pair(&self) -> (&str, &str) {
        (&self.name, &self.namespace)
    }
}

/// True if a class parameter names a secret under a current key.
pub(crate) fn is_key(key: &str) -> bool {
    let all = Keys::for_all();
    let of_use = |one: SecretPurpose| {
        let keys = one.keys();
        key == keys.name || key == keys.namespace
    };
    key == all.name || key == all.namespace || SecretPurpose::ALL.into_iter().any(of_use)
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
    let (new, all, old) = (of.keys(), Keys::for_all(), of.old().map(Keys::old));
    let own = Templates::of(parameters, new.pair(), old.as_ref().map(Keys::pair))?;
    let templates = match own {
        Some(own) => Some(own),
        None => Templates::of(parameters, all.pair(), None)?,
    };
    let list = [
        ("pv.name", about.volume, true),
        ("pvc.name", about.claim, false),
        ("pvc.namespace", about.namespace, true),
    ];
    let variables = Variables { list: &list, annotations: Some(about.annotations) };
    templates.map(|templates| templates.resolve(variables)).transpose()
}

#[cfg(test)]
mod tests;
