//! The parameters of a class: some are for the driver, and some name secrets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;

use crate::api::constants::RESERVED;
use crate::api::secret_template::key_of;
use crate::snapshots::content::{ContentKeys, GROUP, SINGLE};

/// The keys of secrets that the snapshotter reads.
const SECRETS: [&str; 4] = [
    SINGLE.secret_key,
    LIST_SECRET,
    GROUP.secret_key,
    GROUP_GET_SECRET,
];
/// A field of snapshot classes. A parameter of this name only reaches the driver.
pub(super) const DELETION_POLICY: &str = "deletionPolicy";
/// The secret for calls that check one snapshot.
pub(super) const LIST_SECRET: &str = "snapshotter-list-secret";
/// The secret for calls that check a group snapshot.
pub(super) const GROUP_GET_SECRET: &str = "group-snapshotter-get-secret";

/// An invalid class parameter or annotation.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParameterError {
    #[error(
        "the class parameter {key} is unknown, and {RESERVED} is a reserved prefix: correct or \
         remove it"
    )]
    Unknown { key: String },
    #[error("{what}: the name or the namespace of the secret is empty")]
    Half { what: String },
}

/// Returns the parameters for the driver. Fails on unknown keys with the reserved prefix.
pub(super) fn for_driver(
    parameters: Option<&BTreeMap<String, String>>,
) -> Result<BTreeMap<String, String>, ParameterError> {
    let mut kept = BTreeMap::new();
    for (key, value) in parameters.into_iter().flatten() {
        if !key.starts_with(RESERVED) {
            kept.insert(key.clone(), value.clone());
        } else if !key_of(key).is_some_and(|known| SECRETS.contains(&known)) {
            return Err(ParameterError::Unknown { key: key.clone() });
        }
    }
    Ok(kept)
}

/// Returns the secret for create and delete calls from the snapshot-controller's annotations.
pub(super) fn secret_by_annotations(
    annotations: &BTreeMap<String, String>,
    keys: &ContentKeys,
) -> Result<Option<SecretReference>, ParameterError> {
    let name = annotations.get(keys.secret_name);
    let namespace = annotations.get(keys.secret_namespace);
    let (Some(name), Some(namespace)) = (name, namespace) else {
        return Ok(None);
    };
    if name.is_empty() || namespace.is_empty() {
        let what = format!("annotation {}", keys.secret_name);
        return Err(ParameterError::Half { what });
    }
    Ok(Some(SecretReference {
        namespace: Some(namespace.clone()),
        name: Some(name.clone()),
    }))
}

#[cfg(test)]
mod tests;
