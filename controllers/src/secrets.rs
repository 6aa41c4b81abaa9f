//! Reads the secrets that CSI calls carry.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Secret, SecretReference};

use crate::client::{ApiError, Kube};

pub(crate) use crate::api::secret_template::TemplateError;

/// The content of a secret. Pass it only to the call that needs it; never log or store it.
pub(crate) type Credentials = BTreeMap<String, String>;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("secret {namespace}/{name}: {source}")]
    Unreadable {
        namespace: String,
        name: String,
        #[source]
        source: ApiError,
    },
    #[error("secret {namespace}/{name} does not exist: create it")]
    Missing { namespace: String, name: String },
    /// A value is not UTF-8, which CSI requires.
    #[error("secret {namespace}/{name}: the value of {key:?} is not text")]
    NotText {
        namespace: String,
        name: String,
        key: String,
    },
}

/// Reads a secret from the API server each time, so that it never stays in memory.
pub(crate) async fn read(
    kube: &Kube,
    reference: Option<&SecretReference>,
) -> Result<Credentials, SecretError> {
    let Some(reference) = reference else {
        return Ok(Credentials::new());
    };
    let namespace = reference.namespace.clone().unwrap_or_default();
    let name = reference.name.clone().unwrap_or_default();
    if name.is_empty() || namespace.is_empty() {
        return Err(SecretError::Missing { namespace, name });
    }
    match kube.get::<Secret>(&namespace, &name).await {
        Ok(Some(secret)) => texts(secret, &namespace, &name),
        Ok(None) => Err(SecretError::Missing { namespace, name }),
        Err(source) => Err(SecretError::Unreadable {
            namespace,
            name,
            source,
        }),
    }
}

/// Turns a missing secret into empty credentials, for a call that undoes something. The secret may
/// be gone with its namespace, which waits for the call. The driver decides if it needs the
/// secret.
pub(crate) fn unless_missing(
    read: Result<Credentials, SecretError>,
) -> Result<Credentials, SecretError> {
    match read {
        Err(error @ SecretError::Missing { .. }) => {
            tracing::warn!(%error, "a secret is missing: the driver deletes or detaches without it");
            Ok(Credentials::new())
        }
        read => read,
    }
}

fn texts(secret: Secret, namespace: &str, name: &str) -> Result<Credentials, SecretError> {
    let entries = secret.data.unwrap_or_default().into_iter();
    entries
        .map(|(key, value)| match String::from_utf8(value.0) {
            Ok(value) => Ok((key, value)),
            Err(_) => Err(SecretError::NotText {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                key,
            }),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn secrets_are_text() {
        let secret = |value: &[u8]| Secret {
            data: Some([("key".to_owned(), ByteString(value.to_vec()))].into()),
            ..Secret::default()
        };
        let read = texts(secret(b"hush"), "ns", "s").unwrap();
        assert_eq!(read["key"], "hush");
        let error = texts(secret(b"\xff\xfe"), "ns", "s").unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"secret ns/s: the value of "key" is not text"#
        );
        assert!(texts(Secret::default(), "ns", "s").unwrap().is_empty());
    }
}
