//! Which secrets go with which calls, as a class names them: in templates, under keys of their
//! own, under one key for all, or under the keys of old.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;

use super::names::RESERVED;

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

    /// How it begins in the keys of old, which the later calls never had.
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

/// Where a secret's name and namespace are told.
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

    /// The two templates, if either is given.
    fn templates<'a>(
        &self,
        parameters: &'a BTreeMap<String, String>,
    ) -> Result<Option<(&'a str, &'a str)>, SecretProblem> {
        let given = |key: &str| {
            let value = parameters.get(key).map(String::as_str);
            value.filter(|value| !value.is_empty())
        };
        match (given(&self.name), given(&self.namespace)) {
            (None, None) => Ok(None),
            (Some(name), Some(namespace)) => Ok(Some((name, namespace))),
            (Some(_), None) => Err(SecretProblem::half(&self.name, &self.namespace)),
            (None, Some(_)) => Err(SecretProblem::half(&self.namespace, &self.name)),
        }
    }
}

/// Whether a class parameter tells of a secret in one of today's forms.
pub(crate) fn is_key(key: &str) -> bool {
    let all = Keys::for_all();
    let of_use = |one: Use| {
        let keys = one.keys();
        key == keys.name || key == keys.namespace
    };
    key == all.name || key == all.namespace || Use::ALL.into_iter().any(of_use)
}

/// A class whose secrets can't be made out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SecretProblem {
    /// A name without a namespace, or the reverse.
    #[error("the StorageClass has the parameter {given} but not {missing}: give both or none")]
    Half {
        /// What is there.
        given: String,
        /// What is not.
        missing: String,
    },
    /// It is told twice.
    #[error("the StorageClass has both {new} and its older form {old}: remove {old}")]
    Twice {
        /// The key of today.
        new: String,
        /// The key of old.
        old: String,
    },
    /// A template names something there is not.
    #[error("the StorageClass parameter {key}: {template:?} has ${{{token}}}: {why}")]
    Token {
        /// The parameter.
        key: String,
        /// Its value.
        template: String,
        /// What was not understood.
        token: String,
        /// What can be there.
        why: &'static str,
    },
    /// It came out as something no object can be named.
    #[error("the StorageClass parameter {key}: {template:?} makes {result:?}, which is not {rule}")]
    Name {
        /// The parameter.
        key: String,
        /// Its value.
        template: String,
        /// What it makes of this claim.
        result: String,
        /// What it would have to be.
        rule: &'static str,
    },
}

impl SecretProblem {
    fn half(given: &str, missing: &str) -> Self {
        SecretProblem::Half {
            given: given.to_owned(),
            missing: missing.to_owned(),
        }
    }
}

/// What templates are about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// The volume's name.
    pub(crate) volume: &'a str,
    /// The claim's.
    pub(crate) claim: &'a str,
    /// Its namespace.
    pub(crate) namespace: &'a str,
    /// Its annotations.
    pub(crate) annotations: &'a BTreeMap<String, String>,
}

const NAMESPACE_TOKENS: &str = "only ${pv.name} and ${pvc.namespace} can be there";
const NAME_TOKENS: &str = "only ${pv.name}, ${pvc.name}, ${pvc.namespace} and \
                           ${pvc.annotations['KEY']} of an annotation the claim has can be there";

impl About<'_> {
    fn in_namespace(&self, token: &str) -> Option<&str> {
        match token {
            "pv.name" => Some(self.volume),
            "pvc.namespace" => Some(self.namespace),
            _ => None,
        }
    }

    fn in_name(&self, token: &str) -> Option<&str> {
        if token == "pvc.name" {
            return Some(self.claim);
        }
        let key = token
            .strip_prefix("pvc.annotations['")
            .and_then(|rest| rest.strip_suffix("']"));
        match key {
            Some(key) => self.annotations.get(key).map(String::as_str),
            None => self.in_namespace(token),
        }
    }
}

/// The secret a class names for a use, if it does.
pub(crate) fn reference(
    of: Use,
    parameters: &BTreeMap<String, String>,
    about: About<'_>,
) -> Result<Option<SecretReference>, SecretProblem> {
    let (new, all, old) = (of.keys(), Keys::for_all(), of.old().map(Keys::old));
    let specific = new.templates(parameters)?;
    let deprecated = match &old {
        Some(old) => old.templates(parameters)?,
        None => None,
    };
    let general = all.templates(parameters)?;
    let (keys, templates) = match (specific, old.as_ref().zip(deprecated), general) {
        (Some(_), Some((old, _)), _) => {
            return Err(SecretProblem::Twice {
                new: new.name,
                old: old.name.clone(),
            });
        }
        (Some(templates), None, _) => (&new, templates),
        (None, Some((old, templates)), _) => (old, templates),
        (None, None, Some(templates)) => (&all, templates),
        (None, None, None) => return Ok(None),
    };
    let namespace = expand(&keys.namespace, templates.1, NAMESPACE_TOKENS, |token| {
        about.in_namespace(token)
    })?;
    let name = expand(&keys.name, templates.0, NAME_TOKENS, |token| {
        about.in_name(token)
    })?;
    if !is_label(&namespace) {
        let rule = "a namespace's name (a DNS-1123 label)";
        return Err(wrong(&keys.namespace, templates.1, namespace, rule));
    }
    if !is_subdomain(&name) {
        let rule = "a secret's name (a DNS-1123 subdomain)";
        return Err(wrong(&keys.name, templates.0, name, rule));
    }
    Ok(Some(SecretReference {
        namespace: Some(namespace),
        name: Some(name),
    }))
}

fn wrong(key: &str, template: &str, result: String, rule: &'static str) -> SecretProblem {
    SecretProblem::Name {
        key: key.to_owned(),
        template: template.to_owned(),
        result,
        rule,
    }
}

/// Puts in `${token}` and `$token`.
fn expand<'a>(
    key: &str,
    template: &str,
    why: &'static str,
    value: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, SecretProblem> {
    let mut result = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        let (token, after) = token(&rest[at + 1..]);
        let Some(value) = value(token) else {
            return Err(SecretProblem::Token {
                key: key.to_owned(),
                template: template.to_owned(),
                token: token.to_owned(),
                why,
            });
        };
        result.push_str(value);
        rest = after;
    }
    result.push_str(rest);
    Ok(result)
}

/// The token after a `$`, and what is behind it. In braces it may be anything; without, it ends
/// as a shell's variable does.
fn token(text: &str) -> (&str, &str) {
    if let Some(inner) = text.strip_prefix('{') {
        return inner.split_once('}').unwrap_or((inner, ""));
    }
    let end = text
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    text.split_at(end)
}

fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let outer = |c: Option<&u8>| c.is_some_and(|c| *c != b'-');
    let bytes = text.as_bytes();
    text.len() <= 63
        && bytes.iter().all(|c| inner(*c))
        && outer(bytes.first())
        && outer(bytes.last())
}

fn is_subdomain(text: &str) -> bool {
    // Its labels may be long: only the whole is limited.
    let part = |part: &str| {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        !part.is_empty()
            && part.bytes().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(part)
}

#[cfg(test)]
mod tests;
