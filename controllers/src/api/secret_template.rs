//! Templates for the names of secrets in classes and volumes, and reading those secrets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Secret, SecretReference};

use crate::runtime::{ApiError, Kube};

/// The content of a secret. Pass it only to the call that needs it; never log or store it.
pub(crate) type Credentials = BTreeMap<String, String>;

/// A class parameter that is a template: its key and its value.
type Template<'a> = (&'a str, &'a str);

/// The two class parameters that name a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Templates<'a> {
    pub(crate) name: Template<'a>,
    pub(crate) namespace: Template<'a>,
}

/// The parameters of a class name no valid secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("the class has the parameter {given} but not {missing}: give both or none")]
    Half { given: String, missing: String },
    #[error("the class parameter {key} is empty: give it a value, or remove it")]
    Empty { key: String },
    #[error("the class has both parameters {new} and {old}: remove {old}")]
    Twice { new: String, old: String },
    #[error("the class parameter {key}: {template:?} has ${{{token}}}; it can have only {known}")]
    Token {
        key: String,
        template: String,
        token: String,
        known: String,
    },
    #[error("the class parameter {key}: {template:?} makes {result:?}, which is not {rule}")]
    Name {
        key: String,
        template: String,
        result: String,
        rule: &'static str,
    },
}

/// The tokens of a template: `known` lists them for error messages, `value` expands one.
pub(crate) struct Words<'a, F: Fn(&str) -> Option<&'a str>> {
    pub(crate) known: &'static str,
    pub(crate) value: F,
}

/// The template under one of two keys; giving both is an error.
fn template<'a>(
    parameters: &'a BTreeMap<String, String>,
    new: &'a str,
    old: Option<&'a str>,
) -> Result<Option<Template<'a>>, TemplateError> {
    let given = |key: &'a str| Some((key, parameters.get(key)?.as_str()));
    let found = match (given(new), old.and_then(given)) {
        (Some(_), Some((old, _))) => {
            return Err(TemplateError::Twice {
                new: new.to_owned(),
                old: old.to_owned(),
            });
        }
        (found, older) => found.or(older),
    };
    match found {
        Some((key, "")) => Err(TemplateError::Empty {
            key: key.to_owned(),
        }),
        found => Ok(found),
    }
}

impl<'a> Templates<'a> {
    /// Reads the name and namespace parameters, each under its current or its deprecated key.
    pub(crate) fn of(
        parameters: &'a BTreeMap<String, String>,
        new: (&'a str, &'a str),
        old: Option<(&'a str, &'a str)>,
    ) -> Result<Option<Self>, TemplateError> {
        let name = template(parameters, new.0, old.map(|old| old.0))?;
        let namespace = template(parameters, new.1, old.map(|old| old.1))?;
        let half = |given: &str, missing: &str| TemplateError::Half {
            given: given.to_owned(),
            missing: missing.to_owned(),
        };
        match (name, namespace) {
            (None, None) => Ok(None),
            (Some(name), Some(namespace)) => Ok(Some(Templates { name, namespace })),
            (Some((given, _)), None) => Err(half(given, new.1)),
            (None, Some((given, _))) => Err(half(given, new.0)),
        }
    }

    /// Expands both templates to a secret's name and namespace.
    pub(crate) fn resolve<'v>(
        self,
        in_name: Words<'v, impl Fn(&str) -> Option<&'v str>>,
        in_namespace: Words<'v, impl Fn(&str) -> Option<&'v str>>,
    ) -> Result<SecretReference, TemplateError> {
        let namespace = expand(self.namespace, in_namespace)?;
        let name = expand(self.name, in_name)?;
        let wrong = |(key, template): Template<'_>, result: &str, rule| TemplateError::Name {
            key: key.to_owned(),
            template: template.to_owned(),
            result: result.to_owned(),
            rule,
        };
        if !is_label(&namespace) {
            let rule = "a namespace's name (a DNS-1123 label)";
            return Err(wrong(self.namespace, &namespace, rule));
        }
        if !is_subdomain(&name) {
            let rule = "a secret's name (a DNS-1123 subdomain)";
            return Err(wrong(self.name, &name, rule));
        }
        Ok(SecretReference {
            namespace: Some(namespace),
            name: Some(name),
        })
    }
}

/// Replaces `${token}` and `$token`.
fn expand<'v>(
    (key, template): Template<'_>,
    words: Words<'v, impl Fn(&str) -> Option<&'v str>>,
) -> Result<String, TemplateError> {
    let mut result = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        let (token, next) = token(after);
        let Some(value) = (words.value)(token) else {
            return Err(TemplateError::Token {
                key: key.to_owned(),
                template: template.to_owned(),
                token: token.to_owned(),
                known: words.known.to_owned(),
            });
        };
        result.push_str(value);
        rest = next;
    }
    result.push_str(rest);
    Ok(result)
}

/// Splits the text after a `$` into a token and the rest. A braced token may contain anything;
/// without braces it ends where a shell variable would. An unclosed brace gives an unknown token.
fn token(text: &str) -> (&str, &str) {
    let braced = text
        .strip_prefix('{')
        .and_then(|inner| inner.split_once('}'));
    braced.unwrap_or_else(|| {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        text.split_at(end.unwrap_or(text.len()))
    })
}

fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// DNS-1123 limits the length of the whole subdomain, not of its parts.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The API server returned an error.
    #[error("secret {namespace}/{name}: {source}")]
    Unreadable {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: ApiError,
    },
    /// The secret does not exist.
    #[error("there is no secret {namespace}/{name}")]
    Missing {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// CSI calls carry UTF-8 only.
    #[error("secret {namespace}/{name}: the value of {key:?} is not text")]
    NotText {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The key.
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

    #[test]
    fn pairs_of_parameters() {
        let keys = ("n", "ns");
        let old = Some(("oldN", "oldNs"));
        type Case<'a> = (&'a [(&'a str, &'a str)], Result<Option<&'a str>, &'a str>);
        let cases: &[Case<'_>] = &[
            (&[], Ok(None)),
            (&[("n", "a"), ("ns", "b")], Ok(Some("b/a"))),
            (&[("oldN", "a"), ("oldNs", "b")], Ok(Some("b/a"))),
            // As upstream does, a deprecated key may complete a current one.
            (&[("oldN", "a"), ("ns", "b")], Ok(Some("b/a"))),
            (&[("n", "a")], Err("but not ns")),
            (&[("oldNs", "a")], Err("has the parameter oldNs but not n:")),
            (&[("n", ""), ("ns", "")], Err("parameter n is empty")),
            (&[("n", "a"), ("ns", "")], Err("parameter ns is empty")),
            (
                &[("n", "a"), ("ns", "b"), ("oldN", "a")],
                Err("remove oldN"),
            ),
        ];
        for (parameters, expected) in cases {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let all: BTreeMap<_, _> = parameters.iter().map(owned).collect();
            match (Templates::of(&all, keys, old), expected) {
                (Ok(found), Ok(expected)) => {
                    let found = found.map(|pair| format!("{}/{}", pair.namespace.1, pair.name.1));
                    assert_eq!(found.as_deref(), *expected, "{parameters:?}");
                }
                (Err(error), Err(part)) => {
                    let text = error.to_string();
                    assert!(text.contains(part), "{parameters:?}: {text}");
                }
                (found, _) => panic!("{parameters:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn templates_become_names() {
        let long = "a".repeat(64);
        for (template, name, namespace) in [
            ("a", Some("a"), Some("a")),
            ("${w}-x", Some("w-x"), Some("w-x")),
            ("$w-x", Some("w-x"), Some("w-x")),
            ("a.b", Some("a.b"), None),
            (&long, Some(&*long), None),
            ("$wx", None, None),
            ("${other}", None, None),
            ("${w", None, None),
            ("a$", None, None),
            ("Upper", None, None),
            ("a..b", None, None),
            ("-a", None, None),
        ] {
            let words = || Words {
                known: "${w}",
                value: |token: &str| (token == "w").then_some("w"),
            };
            let good = ("key", "good");
            let of = |name, namespace| Templates { name, namespace }.resolve(words(), words());
            let made = of(("key", template), good).ok().and_then(|made| made.name);
            assert_eq!(made.as_deref(), name, "{template}");
            let made = of(good, ("key", template)).ok();
            let made = made.and_then(|made| made.namespace);
            assert_eq!(made.as_deref(), namespace, "{template}");
        }
    }
}
