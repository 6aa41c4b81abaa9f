//! Reads the secrets that CSI calls carry.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Secret, SecretReference};

use crate::client::{ApiError, Kube};
use crate::csi::{Failure, may_lack_secret};

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

/// The secret that a call lacks because it is missing, if it lacks one.
#[derive(Debug, Default)]
pub(crate) struct LackedSecret(Option<SecretError>);

impl LackedSecret {
    /// Why the call failed, if that may be for lack of its secret. The failure then says nothing
    /// about what an earlier call has made.
    pub(crate) fn explains(self, failure: &Failure) -> Option<SecretError> {
        self.0.filter(|_| may_lack_secret(failure))
    }
}

/// The secret of a call that creates something or finds what an earlier call has created. If that
/// is only to be deleted, the call goes without a secret that is missing: it may be gone with its
/// namespace, which waits for the deletion.
pub(crate) fn unless_unwanted(
    read: Result<Credentials, SecretError>,
    is_unwanted: bool,
) -> Result<(Credentials, LackedSecret), SecretError> {
    match read {
        Err(missing @ SecretError::Missing { .. }) if is_unwanted => {
            Ok((Credentials::new(), LackedSecret(Some(missing))))
        }
        read => Ok((read?, LackedSecret::default())),
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
    use tonic::{Code, Status};

    use super::*;

    #[test]
    fn only_what_is_unwanted_is_found_without_its_secret() {
        let missing = || SecretError::Missing {
            namespace: "ns".to_owned(),
            name: "s".to_owned(),
        };
        let not_text = || SecretError::NotText {
            namespace: "ns".to_owned(),
            name: "s".to_owned(),
            key: "key".to_owned(),
        };
        let read = || Credentials::from([("key".to_owned(), "hush".to_owned())]);
        let failure = |code| Failure {
            call: "CreateVolume",
            status: Status::new(code, "no"),
        };
        for (result, is_unwanted, credentials, explains) in [
            (Ok(read()), false, Some(read()), false),
            (Ok(read()), true, Some(read()), false),
            (Err(missing()), false, None, false),
            (Err(missing()), true, Some(Credentials::new()), true),
            (Err(not_text()), true, None, false),
        ] {
            let what = format!("{result:?} {is_unwanted}");
            for (code, may_lack) in [(Code::InvalidArgument, true), (Code::OutOfRange, false)] {
                let result = match &result {
                    Ok(read) => Ok(read.clone()),
                    Err(SecretError::Missing { .. }) => Err(missing()),
                    Err(_) => Err(not_text()),
                };
                let found = unless_unwanted(result, is_unwanted).ok();
                assert_eq!(
                    found.as_ref().map(|(read, _)| read),
                    credentials.as_ref(),
                    "{what}"
                );
                let why = found.and_then(|(_, lacked)| lacked.explains(&failure(code)));
                assert_eq!(why.is_some(), explains && may_lack, "{what} {code:?}");
            }
        }
    }

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
