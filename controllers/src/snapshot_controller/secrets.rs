//! Which secret goes with snapshots, as their class names it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;

/// The keys a class names a secret by, and the words its templates may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    name: &'static str,
    namespace: &'static str,
    /// What templates call the content, the snapshot and the snapshot's namespace.
    words: [&'static str; 3],
}

/// Of single snapshots.
pub(super) const SNAPSHOTS: Keys = Keys {
    name: "csi.storage.k8s.io/snapshotter-secret-name",
    namespace: "csi.storage.k8s.io/snapshotter-secret-namespace",
    words: [
        "volumesnapshotcontent.name",
        "volumesnapshot.name",
        "volumesnapshot.namespace",
    ],
};

/// Of group snapshots.
pub(super) const GROUPS: Keys = Keys {
    name: "csi.storage.k8s.io/group-snapshotter-secret-name",
    namespace: "csi.storage.k8s.io/group-snapshotter-secret-namespace",
    words: [
        "volumegroupsnapshotcontent.name",
        "volumegroupsnapshot.name",
        "volumegroupsnapshot.namespace",
    ],
};

/// What templates are about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    /// The content's name.
    pub(super) content: &'a str,
    /// The snapshot's.
    pub(super) name: &'a str,
    /// Its namespace.
    pub(super) namespace: &'a str,
}

/// A class whose secret can't be made out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SecretProblem {
    /// Only one of the two is given, or one is empty.
    #[error("the class must have both parameters {0} and {1}, with values, or neither")]
    Half(&'static str, &'static str),
    /// A template names something there is not.
    #[error("the class parameter {key}: {template:?} has ${{{token}}}, which is none of {known}")]
    Token {
        /// The parameter.
        key: &'static str,
        /// Its value.
        template: String,
        /// What was not understood.
        token: String,
        /// What could be there.
        known: String,
    },
    /// It came out as something no object can be named.
    #[error("the class parameter {key}: {template:?} makes {result:?}, which is not {rule}")]
    Name {
        /// The parameter.
        key: &'static str,
        /// Its value.
        template: String,
        /// What it makes.
        result: String,
        /// What it would have to be.
        rule: &'static str,
    },
}

/// The secret a class names, if it does.
pub(super) fn reference(
    keys: &Keys,
    parameters: Option<&BTreeMap<String, String>>,
    about: About<'_>,
) -> Result<Option<SecretReference>, SecretProblem> {
    let given = |key| parameters.and_then(|parameters| parameters.get(key));
    let (name, namespace) = match (given(keys.name), given(keys.namespace)) {
        (None, None) => return Ok(None),
        (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => {
            (name, namespace)
        }
        _ => return Err(SecretProblem::Half(keys.name, keys.namespace)),
    };
    let [content, snapshot, snapshots_namespace] = keys.words;
    let in_namespace = [
        (content, about.content),
        (snapshots_namespace, about.namespace),
    ];
    let in_name = [
        (content, about.content),
        (snapshot, about.name),
        (snapshots_namespace, about.namespace),
    ];
    let namespace = Template(keys.namespace, namespace).expand(&in_namespace, is_label, LABEL)?;
    let name = Template(keys.name, name).expand(&in_name, is_subdomain, SUBDOMAIN)?;
    Ok(Some(SecretReference {
        name: Some(name),
        namespace: Some(namespace),
    }))
}

/// How a content says which secret deletes its snapshot: under these keys, name and namespace.
pub(super) fn annotations(
    secret: SecretReference,
    (name, namespace): (&str, &str),
) -> BTreeMap<String, String> {
    BTreeMap::from([
        (name.to_owned(), secret.name.unwrap_or_default()),
        (namespace.to_owned(), secret.namespace.unwrap_or_default()),
    ])
}

const LABEL: &str = "a namespace's name (a DNS-1123 label)";
const SUBDOMAIN: &str = "a secret's name (a DNS-1123 subdomain)";

/// A parameter's key and value.
struct Template<'a>(&'static str, &'a str);

impl Template<'_> {
    /// With `${word}` and `$word` replaced.
    fn expand(
        &self,
        words: &[(&str, &str)],
        is_name: fn(&str) -> bool,
        rule: &'static str,
    ) -> Result<String, SecretProblem> {
        let Template(key, template) = *self;
        let mut parts = template.split('$');
        let mut result = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (token, rest) = token(part);
            let Some((_, value)) = words.iter().find(|(word, _)| *word == token) else {
                let known: Vec<String> = words
                    .iter()
                    .map(|(word, _)| format!("${{{word}}}"))
                    .collect();
                return Err(SecretProblem::Token {
                    key,
                    template: template.to_owned(),
                    token: token.to_owned(),
                    known: known.join(", "),
                });
            };
            result.push_str(value);
            result.push_str(rest);
        }
        if is_name(&result) {
            return Ok(result);
        }
        Err(SecretProblem::Name {
            key,
            template: template.to_owned(),
            result,
            rule,
        })
    }
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
    text.len() <= 63 && is_part(text)
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = SNAPSHOTS.name;
    const NAMESPACE: &str = SNAPSHOTS.namespace;

    fn resolved(parameters: &[(&str, &str)]) -> Result<Option<String>, String> {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let parameters = parameters.iter().map(own).collect();
        let about = About {
            content: "snapcontent-1",
            name: "snap",
            namespace: "team",
        };
        reference(&SNAPSHOTS, Some(&parameters), about)
            .map(|found| {
                found.map(|found| {
                    format!(
                        "{}/{}",
                        found.namespace.unwrap_or_default(),
                        found.name.unwrap_or_default()
                    )
                })
            })
            .map_err(|problem| problem.to_string())
    }

    #[test]
    fn secrets() {
        for (parameters, expected) in [
            (&[][..], None),
            (&[("other", "x")][..], None),
            (&[(NAME, "s"), (NAMESPACE, "n")], Some("n/s")),
            (
                &[
                    (NAME, "${volumesnapshot.name}-${volumesnapshotcontent.name}"),
                    (NAMESPACE, "${volumesnapshot.namespace}"),
                ],
                Some("team/snap-snapcontent-1"),
            ),
        ] {
            assert_eq!(resolved(parameters), Ok(expected.map(str::to_owned)));
        }
    }

    #[test]
    fn wrong_secrets() {
        for (parameters, expected) in [
            (&[(NAME, "s")][..], "both parameters"),
            (&[(NAME, "s"), (NAMESPACE, "")], "both parameters"),
            (&[(NAME, "${x}"), (NAMESPACE, "n")], "has ${x}"),
            (&[(NAME, "$x-y"), (NAMESPACE, "n")], "has ${x}"),
            (
                &[(NAME, "s"), (NAMESPACE, "${volumesnapshot.name}")],
                "none of ${volumesnapshotcontent.name}",
            ),
            (&[(NAME, "Big"), (NAMESPACE, "n")], "not a secret's name"),
            (&[(NAME, "s"), (NAMESPACE, "a.b")], "not a namespace's name"),
        ] {
            let problem = resolved(parameters).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
