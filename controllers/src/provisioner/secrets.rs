//! The secrets that a class names for CSI calls. A class names them under a call's own keys, under
//! one pair of keys for all calls, or under deprecated keys.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;

use crate::api::names::RESERVED;
use crate::api::secret_template::{TemplateError, Templates, Variables};

/// A call, or a pair of calls, that takes secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
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

impl Use {
    const ALL: [Use; 7] = [
        Use::Provisioner,
        Use::ControllerPublish,
        Use::NodeStage,
        Use::NodePublish,
        Use::ControllerExpand,
        Use::NodeExpand,
        Use::ControllerModify,
    ];

    fn word(self) -> &'static str {
        match self {
            Use::Provisioner => "provisioner",
            Use::ControllerPublish => "controller-publish",
            Use::NodeStage => "node-stage",
            Use::NodePublish => "node-publish",
            Use::ControllerExpand => "controller-expand",
            Use::NodeExpand => "node-expand",
            Use::ControllerModify => "controller-modify",
        }
    }

    /// The prefix of the deprecated keys; `None` for calls that never had such keys.
    fn old(self) -> Option<&'static str> {
        match self {
            Use::Provisioner => Some("csiProvisionerSecret"),
            Use::ControllerPublish => Some("csiControllerPublishSecret"),
            Use::NodeStage => Some("csiNodeStageSecret"),
            Use::NodePublish => Some("csiNodePublishSecret"),
            Use::ControllerExpand | Use::NodeExpand | Use::ControllerModify => None,
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
        Keys {
            name: format!("{prefix}Name"),
            namespace: format!("{prefix}Namespace"),
        }
    }

    fn pair(&self) -> (&str, &str) {
        (&self.name, &self.namespace)
    }
}

/// True if a class parameter names a secret under a current key.
pub(crate) fn is_key(key: &str) -> bool {
    let all = Keys::for_all();
    let of_use = |one: Use| {
        let keys = one.keys();
        key == keys.name || key == keys.namespace
    };
    key == all.name || key == all.namespace || Use::ALL.into_iter().any(of_use)
}

/// The objects that templates are expanded for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// The volume's name.
    pub(crate) volume: &'a str,
    /// The claim's name.
    pub(crate) claim: &'a str,
    /// The claim's namespace.
    pub(crate) namespace: &'a str,
    /// The claim's annotations.
    pub(crate) annotations: &'a BTreeMap<String, String>,
}

/// Returns the secret that a class names for a use, if any. The parameters for all uses count only
/// if the use has none of its own.
pub(crate) fn reference(
    of: Use,
    parameters: &BTreeMap<String, String>,
    about: About<'_>,
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
