//! Templates for secret names in class parameters.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;

use super::constants::RESERVED;

/// A class parameter that is a template: its key and its value.
type Template<'a> = (&'a str, &'a str);

/// The two class parameters that name a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Templates<'a> {
    pub(crate) name: Template<'a>,
    pub(crate) namespace: Template<'a>,
}

/// The reason why the parameters of a class name no valid secret.
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

/// The variables that templates can use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variables<'a> {
    pub(crate) list: &'a [Variable<'a>],
    /// A claim's annotations, which names can use as `${pvc.annotations['KEY']}`.
    pub(crate) annotations: Option<&'a BTreeMap<String, String>>,
}

/// A variable: its token, its value, and whether namespaces can use it too. A value that users
/// choose must not select a namespace.
pub(crate) type Variable<'a> = (&'a str, &'a str, bool);

const ANNOTATION: (&str, &str) = ("pvc.annotations['", "']");

/// The keys of the annotations that a template names.
pub(crate) fn annotation_keys(template: &str) -> impl Iterator<Item = &str> {
    let tokens = template.split('$').skip(1).map(|after| token(after).0);
    let (before, after) = ANNOTATION;
    tokens.filter_map(move |token| token.strip_prefix(before)?.strip_suffix(after))
}

impl<'a> Variables<'a> {
    fn value(&self, token: &str, in_namespace: bool) -> Option<&'a str> {
        if let Some((_, value, _)) = self
            .list
            .iter()
            .find(|(name, _, everywhere)| *name == token && (*everywhere || !in_namespace))
        {
            return Some(value);
        }
        let annotations = self.annotations.filter(|_| !in_namespace)?;
        let key = token
            .strip_prefix(ANNOTATION.0)?
            .strip_suffix(ANNOTATION.1)?;
        annotations.get(key).map(String::as_str)
    }

    /// Lists the allowed tokens for error messages.
    fn known(&self, in_namespace: bool) -> String {
        let allowed = self.list.iter().filter(|it| it.2 || !in_namespace);
        let mut known: Vec<_> = allowed.map(|(name, ..)| format!("${{{name}}}")).collect();
        if self.annotations.is_some() && !in_namespace {
            let (before, after) = ANNOTATION;
            known.push(format!(
                "${{{before}KEY{after}}} of an annotation the claim has"
            ));
        }
        let last = known.pop().unwrap_or_default();
        match known[..] {
            [] => last,
            _ => format!("{} and {last}", known.join(", ")),
        }
    }
}

/// Returns the template under one of two keys. Both keys together are an error.
fn template<'a>(
    parameters: &'a BTreeMap<String, String>,
    new: &'a str,
    old: Option<&'a str>,
) -> Result<Option<Template<'a>>, TemplateError> {
    let older = old.and_then(|key| given(parameters, key));
    let found = match (given(parameters, new), older) {
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

fn given<'a>(parameters: &'a BTreeMap<String, String>, key: &'a str) -> Option<Template<'a>> {
    Some((key, parameters.get(key)?.as_str()))
}

/// The class parameters for the name and the namespace of the secret with this key.
pub(crate) fn parameters_of(key: &str) -> [String; 2] {
    ["name", "namespace"].map(|end| format!("{RESERVED}{key}-{end}"))
}

/// The key of the secret that a class parameter names; `None` if its name does not have that form.
pub(crate) fn key_of(parameter: &str) -> Option<&str> {
    let own = parameter.strip_prefix(RESERVED)?;
    own.strip_suffix("-name")
        .or_else(|| own.strip_suffix("-namespace"))
}

impl<'a> Templates<'a> {
    /// Reads the name and namespace parameters, each under its current or its deprecated key.
    pub(crate) fn of(
        parameters: &'a BTreeMap<String, String>,
        new: &'a [String; 2],
        old: Option<&'a [String; 2]>,
    ) -> Result<Option<Self>, TemplateError> {
        let name = template(parameters, &new[0], old.map(|old| &*old[0]))?;
        let namespace = template(parameters, &new[1], old.map(|old| &*old[1]))?;
        let (given, missing) = match (name, namespace) {
            (None, None) => return Ok(None),
            (Some(name), Some(namespace)) => return Ok(Some(Templates { name, namespace })),
            (Some((given, _)), None) => (given, &new[1]),
            (None, Some((given, _))) => (given, &new[0]),
        };
        Err(TemplateError::Half {
            given: given.to_owned(),
            missing: missing.clone(),
        })
    }

    /// Expands both templates to a secret's name and namespace.
    pub(crate) fn resolve(
        self,
        variables: Variables<'_>,
    ) -> Result<SecretReference, TemplateError> {
        let namespace = expand(self.namespace, variables, true)?;
        let name = expand(self.name, variables, false)?;
        if !is_label(&namespace) {
            let rule = "a namespace's name (a DNS-1123 label)";
            return Err(invalid_name(self.namespace, namespace, rule));
        }
        if !is_subdomain(&name) {
            let rule = "a secret's name (a DNS-1123 subdomain)";
            return Err(invalid_name(self.name, name, rule));
        }
        Ok(SecretReference {
            namespace: Some(namespace),
            name: Some(name),
        })
    }
}

fn invalid_name(
    (key, template): Template<'_>,
    result: String,
    rule: &'static str,
) -> TemplateError {
    TemplateError::Name {
        key: key.to_owned(),
        template: template.to_owned(),
        result,
        rule,
    }
}

/// The object that the templates of a snapshot class are expanded for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotVariables<'a> {
    /// The first part of its tokens: `volumesnapshot` or `volumegroupsnapshot`.
    pub(crate) kind: &'static str,
    pub(crate) content: &'a str,
    pub(crate) name: &'a str,
    pub(crate) namespace: &'a str,
}

/// The secret that a snapshot class names under a key.
pub(crate) fn of_snapshot_class(
    parameters: Option<&BTreeMap<String, String>>,
    key: &str,
    it: SnapshotVariables<'_>,
) -> Result<Option<SecretReference>, TemplateError> {
    let (keys, none) = (parameters_of(key), BTreeMap::new());
    let templates = Templates::of(parameters.unwrap_or(&none), &keys, None)?;
    let tokens = ["content.name", ".name", ".namespace"].map(|end| format!("{}{end}", it.kind));
    let list = [
        (&*tokens[0], it.content, true),
        (&*tokens[1], it.name, false),
        (&*tokens[2], it.namespace, true),
    ];
    let variables = Variables {
        list: &list,
        annotations: None,
    };
    templates
        .map(|templates| templates.resolve(variables))
        .transpose()
}

/// Replaces `${token}` and `$token`.
fn expand(
    (key, template): Template<'_>,
    variables: Variables<'_>,
    in_namespace: bool,
) -> Result<String, TemplateError> {
    let mut result = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        let (token, next) = token(after);
        let Some(value) = variables.value(token, in_namespace) else {
            return Err(TemplateError::Token {
                key: key.to_owned(),
                template: template.to_owned(),
                token: token.to_owned(),
                known: variables.known(in_namespace),
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

/// True for a DNS-1123 subdomain. The length limit applies to the whole name, not to its parts.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_result;

    #[test]
    fn annotations_that_templates_name() {
        for (template, expected) in [
            ("${pvc.annotations['team/key']}", &["team/key"][..]),
            (
                "a-${pvc.annotations['b']}-${pvc.name}-${pvc.annotations['c']}",
                &["b", "c"],
            ),
            ("${pvc.name}-$x", &[]),
            ("pvc.annotations['a']", &[]),
            ("${pvc.annotations['a'", &[]),
            ("", &[]),
        ] {
            assert_eq!(
                annotation_keys(template).collect::<Vec<_>>(),
                expected,
                "{template}"
            );
        }
    }

    #[test]
    fn pairs_of_parameters() {
        let (keys, old) = (
            ["n", "ns"].map(str::to_owned),
            ["oldN", "oldNs"].map(str::to_owned),
        );
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
            let name = |pair: Templates<'_>| format!("{}/{}", pair.namespace.1, pair.name.1);
            let found = Templates::of(&all, &keys, Some(&old)).map(|found| found.map(name));
            check_result(
                found,
                expected.map(|name| name.map(str::to_owned)),
                parameters,
            );
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
            let variables = Variables {
                list: &[("w", "w", true)],
                annotations: None,
            };
            let good = ("key", "good");
            let of = |name, namespace| Templates { name, namespace }.resolve(variables);
            let made = of(("key", template), good).ok().and_then(|made| made.name);
            assert_eq!(made.as_deref(), name, "{template}");
            let made = of(good, ("key", template)).ok();
            let made = made.and_then(|made| made.namespace);
            assert_eq!(made.as_deref(), namespace, "{template}");
        }
    }

    #[test]
    fn secrets_of_snapshot_classes() {
        let it = |kind| SnapshotVariables {
            kind,
            content: "con",
            name: "vs",
            namespace: "team",
        };
        let single = |name, namespace| ("volumesnapshot", name, namespace);
        let both_names = Some("${volumesnapshot.name}-${volumesnapshotcontent.name}");
        let of_content = Some("b-${volumesnapshotcontent.name}");
        let kind = "volumegroupsnapshot";
        let group = (
            kind,
            Some("${volumegroupsnapshot.name}"),
            Some("${volumegroupsnapshot.namespace}"),
        );
        for ((kind, name, namespace), expected) in [
            (single(None, None), Ok(None)),
            (single(Some("s"), None), Err("give both")),
            (single(Some("s"), Some("")), Err("is empty")),
            (single(Some("s"), Some("n")), Ok(Some("n/s"))),
            (
                single(both_names, Some("${volumesnapshot.namespace}")),
                Ok(Some("team/vs-con")),
            ),
            (
                single(Some("a.${volumesnapshotcontent.name}"), of_content),
                Ok(Some("b-con/a.con")),
            ),
            (group, Ok(Some("team/vs"))),
            // Users choose the snapshot's name, so it must not select a namespace.
            (
                single(Some("s"), Some("${volumesnapshot.name}")),
                Err("only ${volumesnapshotcontent.name} and ${volumesnapshot.namespace}"),
            ),
            (
                single(Some("${x}"), Some("n")),
                Err("has ${x}; it can have only ${volumesnapshotcontent.name}, \
                     ${volumesnapshot.name} and ${volumesnapshot.namespace}"),
            ),
            (
                single(Some("${pvc.name}"), Some("n")),
                Err("has ${pvc.name}"),
            ),
            // Without braces, a token ends before the dot.
            (
                single(Some("$volumesnapshot.name"), Some("n")),
                Err("has ${volumesnapshot}"),
            ),
            (single(Some("Big"), Some("n")), Err("not a secret's name")),
            (
                single(Some("s"), Some("a.b")),
                Err("not a namespace's name"),
            ),
        ] {
            let mut parameters = BTreeMap::from([("other".to_owned(), "x".to_owned())]);
            for (end, value) in [("name", name), ("namespace", namespace)] {
                let key = format!("csi.storage.k8s.io/snapshotter-secret-{end}");
                parameters.extend(value.map(|value| (key, value.to_owned())));
            }
            let found = of_snapshot_class(Some(&parameters), "snapshotter-secret", it(kind));
            let found = found
                .map(|found| found.and_then(|it| Some(format!("{}/{}", it.namespace?, it.name?))));
            let expected = expected.map(|name| name.map(str::to_owned));
            check_result(found, expected, (name, namespace));
        }
        let none = of_snapshot_class(None, "snapshotter-secret", it("volumesnapshot"));
        assert_eq!(none, Ok(None));
    }
}
