//! Which secret goes with snapshots, as their class names it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;

use crate::secrets::{TemplateError, Templates, Words};

/// The keys a class names a secret by, and the words its templates may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    name: &'static str,
    namespace: &'static str,
    /// What templates call the content, the snapshot and the snapshot's namespace.
    words: [&'static str; 3],
    /// The allowed tokens, for error messages about names and about namespaces.
    in_name: &'static str,
    in_namespace: &'static str,
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
    in_name: "${volumesnapshotcontent.name}, ${volumesnapshot.name} and \
              ${volumesnapshot.namespace}",
    in_namespace: "${volumesnapshotcontent.name} and ${volumesnapshot.namespace}",
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
    in_name: "${volumegroupsnapshotcontent.name}, ${volumegroupsnapshot.name} and \
              ${volumegroupsnapshot.namespace}",
    in_namespace: "${volumegroupsnapshotcontent.name} and ${volumegroupsnapshot.namespace}",
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

/// The secret a class names, if it does.
pub(super) fn reference(
    keys: &Keys,
    parameters: Option<&BTreeMap<String, String>>,
    about: About<'_>,
) -> Result<Option<SecretReference>, TemplateError> {
    let Some(parameters) = parameters else {
        return Ok(None);
    };
    let templates = Templates::of(parameters, (keys.name, keys.namespace), None)?;
    let [content, snapshot, snapshots_namespace] = keys.words;
    let in_namespace = move |token: &str| match token {
        token if token == content => Some(about.content),
        token if token == snapshots_namespace => Some(about.namespace),
        _ => None,
    };
    let in_name = move |token: &str| match token {
        token if token == snapshot => Some(about.name),
        token => in_namespace(token),
    };
    let resolved = templates.map(|templates| {
        let in_name = Words {
            known: keys.in_name,
            value: in_name,
        };
        let in_namespace = Words {
            known: keys.in_namespace,
            value: in_namespace,
        };
        templates.resolve(in_name, in_namespace)
    });
    resolved.transpose()
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
            (&[(NAME, "s")][..], "give both"),
            (&[(NAME, "s"), (NAMESPACE, "")], "is empty"),
            (&[(NAME, "${x}"), (NAMESPACE, "n")], "has ${x}"),
            (&[(NAME, "$x-y"), (NAMESPACE, "n")], "has ${x}"),
            (
                &[(NAME, "s"), (NAMESPACE, "${volumesnapshot.name}")],
                "only ${volumesnapshotcontent.name}",
            ),
            (&[(NAME, "Big"), (NAMESPACE, "n")], "not a secret's name"),
            (&[(NAME, "s"), (NAMESPACE, "a.b")], "not a namespace's name"),
        ] {
            let problem = resolved(parameters).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
