//! What a class's parameters say: to the driver, and to the loops about secrets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;

use super::names::{Marks, RESERVED};
use crate::runtime::{ApiError, Kube};

/// The keys of the secrets that loops read, without [`RESERVED`] and without `-name` and
/// `-namespace`.
const SECRETS: [&str; 4] = [
    "snapshotter-secret",
    LIST_SECRET,
    "group-snapshotter-secret",
    GROUP_GET_SECRET,
];
/// The secret for asking about one snapshot.
pub(super) const LIST_SECRET: &str = "snapshotter-list-secret";
/// The secret for asking about a group snapshot.
pub(super) const GROUP_GET_SECRET: &str = "group-snapshotter-get-secret";

/// What a driver is given to identify itself with elsewhere. Never to be logged.
pub(super) type Credentials = BTreeMap<String, String>;

/// A class or an annotation that can't be followed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParameterError {
    /// A key of the loops' own that they do not know.
    #[error("the class's parameter {key} is not known, and {RESERVED} is reserved")]
    Unknown {
        /// The key.
        key: String,
    },
    /// Half of a reference to a secret.
    #[error("{what}: both a name and a namespace must be given")]
    Half {
        /// Whose.
        what: String,
    },
    /// A token nothing stands for.
    #[error("{template:?}: nothing is known as {token:?} here")]
    Token {
        /// The template.
        template: String,
        /// The token.
        token: String,
    },
    /// Not what a secret or a namespace can be called.
    #[error("{template:?} makes {name:?}, which is no name of a {kind}")]
    Name {
        /// The template.
        template: String,
        /// What became of it.
        name: String,
        /// What it was to be the name of.
        kind: &'static str,
    },
    /// There is no such secret.
    #[error("there is no secret {0}")]
    Missing(SecretRef),
    /// Its values can't be sent to a driver.
    #[error("secret {secret}: key {key} is not text")]
    NotText {
        /// Which secret.
        secret: SecretRef,
        /// Which key.
        key: String,
    },
}

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretRef {
    /// Its namespace.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
}

impl std::fmt::Display for SecretRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The parameters that are the driver's.
pub(super) fn for_driver(
    parameters: Option<&BTreeMap<String, String>>,
) -> Result<BTreeMap<String, String>, ParameterError> {
    let mut kept = BTreeMap::new();
    for (key, value) in parameters.into_iter().flatten() {
        let Some(own) = key.strip_prefix(RESERVED) else {
            kept.insert(key.clone(), value.clone());
            continue;
        };
        let known = own
            .strip_suffix("-namespace")
            .or_else(|| own.strip_suffix("-name"));
        if !known.is_some_and(|known| SECRETS.contains(&known)) {
            return Err(ParameterError::Unknown { key: key.clone() });
        }
    }
    Ok(kept)
}

/// Where the secret for creating and deleting is, by what the snapshot-controller has written on
/// the content.
pub(super) fn secret_by_annotations(
    annotations: &BTreeMap<String, String>,
    marks: &Marks,
) -> Result<Option<SecretRef>, ParameterError> {
    let name = annotations.get(marks.secret_name);
    let namespace = annotations.get(marks.secret_namespace);
    let (Some(name), Some(namespace)) = (name, namespace) else {
        return Ok(None);
    };
    if name.is_empty() || namespace.is_empty() {
        let what = format!("annotation {}", marks.secret_name);
        return Err(ParameterError::Half { what });
    }
    Ok(Some(SecretRef {
        namespace: namespace.clone(),
        name: name.clone(),
    }))
}

/// What templates of secrets may name: the kinds' prefix (`volumesnapshot` or
/// `volumegroupsnapshot`), the content, and the user's object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens<'a> {
    /// `volumesnapshot` or `volumegroupsnapshot`.
    pub(super) kind: &'static str,
    /// The content's name.
    pub(super) content: &'a str,
    /// The user's object: its namespace.
    pub(super) namespace: &'a str,
    /// Its name. Users choose it, so it is not for choosing a namespace by.
    pub(super) name: &'a str,
}

/// Where a secret is by a class's parameters; `key` is one of [`LIST_SECRET`] and
/// [`GROUP_GET_SECRET`].
pub(super) fn secret_by_class(
    parameters: Option<&BTreeMap<String, String>>,
    key: &str,
    tokens: Tokens<'_>,
) -> Result<Option<SecretRef>, ParameterError> {
    let value = |end: &str| parameters.and_then(|all| all.get(&format!("{RESERVED}{key}-{end}")));
    let (name, namespace) = match (value("name"), value("namespace")) {
        (None, None) => return Ok(None),
        (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => {
            (name, namespace)
        }
        _ => {
            let what = format!("{RESERVED}{key}");
            return Err(ParameterError::Half { what });
        }
    };
    let by_content = |token: &str| match token.strip_prefix(tokens.kind)? {
        "content.name" => Some(tokens.content),
        ".namespace" => Some(tokens.namespace),
        _ => None,
    };
    let by_all = |token: &str| match token.strip_prefix(tokens.kind) {
        Some(".name") => Some(tokens.name),
        _ => by_content(token),
    };
    Ok(Some(SecretRef {
        namespace: named(namespace, by_content, "namespace", is_label)?,
        name: named(name, by_all, "secret", is_subdomain)?,
    }))
}

fn named<'a>(
    template: &str,
    known: impl Fn(&str) -> Option<&'a str>,
    kind: &'static str,
    is_name: impl Fn(&str) -> bool,
) -> Result<String, ParameterError> {
    let name = expand(template, known)?;
    if is_name(&name) {
        return Ok(name);
    }
    Err(ParameterError::Name {
        template: template.to_owned(),
        name,
        kind,
    })
}

/// Puts values in the place of `${token}` and `$token`. Tokens without braces are of letters,
/// digits and underscores.
fn expand<'a>(
    template: &str,
    known: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, ParameterError> {
    let mut made = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        made.push_str(before);
        let braced = after
            .strip_prefix('{')
            .and_then(|inner| inner.split_once('}'));
        let (token, next) = braced.unwrap_or_else(|| {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            after.split_at(end.unwrap_or(after.len()))
        });
        made.push_str(known(token).ok_or_else(|| ParameterError::Token {
            template: template.to_owned(),
            token: token.to_owned(),
        })?);
        rest = next;
    }
    made.push_str(rest);
    Ok(made)
}

/// A DNS label (RFC 1123).
fn is_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len())
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// A DNS subdomain (RFC 1123).
fn is_subdomain(name: &str) -> bool {
    let part = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty()
            && part.chars().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// Why a secret could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum SecretError {
    /// It was asked for wrongly, or is not there.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The API server did not give it.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Reads a secret, from the API server each time: it must not stay in our memory.
pub(super) async fn read(
    kube: &Kube,
    secret: Option<SecretRef>,
) -> Result<Credentials, SecretError> {
    let Some(secret) = secret else {
        return Ok(Credentials::new());
    };
    let found: Option<Secret> = kube.get(&secret.namespace, &secret.name).await?;
    let Some(found) = found else {
        return Err(ParameterError::Missing(secret).into());
    };
    let mut credentials = Credentials::new();
    for (key, value) in found.data.unwrap_or_default() {
        let Ok(value) = String::from_utf8(value.0) else {
            return Err(ParameterError::NotText { secret, key }.into());
        };
        credentials.insert(key, value);
    }
    Ok(credentials)
}

#[cfg(test)]
mod tests;
