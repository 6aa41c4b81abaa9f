//! Paths of requests and objects.

use std::sync::Arc;

use serde_json::Value;

/// The identity of an object. Lists are in this order. Clones share the texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// `v1`, `storage.k8s.io/v1`, …
    pub(super) version: Arc<str>,
    pub(super) plural: Arc<str>,
    pub(super) namespace: Option<Arc<str>>,
    pub(super) name: Arc<str>,
}

impl Key {
    /// Returns the key from an object's kind and name.
    pub(super) fn of(object: &Value) -> Key {
        let text = |value: &Value| value.as_str().map(Arc::from);
        let kind = object["kind"].as_str().expect("a kind");
        Key {
            version: text(&object["apiVersion"]).expect("a version"),
            plural: plural_of(kind).into(),
            namespace: text(&object["metadata"]["namespace"]),
            name: text(&object["metadata"]["name"]).expect("a name"),
        }
    }

    /// The place before the first object of a kind, by its plural.
    pub(super) fn first(version: Arc<str>, plural: &str) -> Key {
        Key {
            version,
            plural: plural.into(),
            namespace: None,
            name: "".into(),
        }
    }

    /// Returns the key from the whole path of an object.
    pub(super) fn at(path: &str) -> Option<Key> {
        let target = Target::of(path).filter(|target| target.subresource.is_none())?;
        target.name.as_deref().map(|name| target.key(name))
    }

    pub(super) fn path(&self) -> String {
        let Key {
            version,
            plural,
            name,
            ..
        } = self;
        let root = if version.contains('/') {
            "/apis"
        } else {
            "/api"
        };
        match &self.namespace {
            None => format!("{root}/{version}/{plural}/{name}"),
            Some(namespace) => format!("{root}/{version}/namespaces/{namespace}/{plural}/{name}"),
        }
    }

    /// The place of the object in a list of its kind: `namespace/name`.
    pub(super) fn place(&self) -> String {
        format!(
            "{}/{}",
            self.namespace.as_deref().unwrap_or_default(),
            self.name
        )
    }
}

/// The plural of a kind.
pub(super) fn plural_of(kind: &str) -> String {
    let word = kind.to_lowercase();
    match (word.strip_suffix('y'), word.ends_with('s')) {
        (Some(stem), _) => format!("{stem}ies"),
        (None, true) => format!("{word}es"),
        (None, false) => format!("{word}s"),
    }
}

/// The target of a path: an object, its subresource, or the objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) version: String,
    pub(super) plural: String,
    /// The namespace of the object, or the namespace that the list is limited to.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
}

impl Target {
    pub(super) fn of(path: &str) -> Option<Target> {
        let path = path.strip_suffix("?watch").unwrap_or(path);
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let depth = if parts[0] == "api" { 2 } else { 3 };
        let (group, rest) = parts.split_at_checked(depth)?;
        let (namespace, rest) = match rest {
            ["namespaces", _, "status" | "finalize"] => (None, rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let part = |at: usize| rest.get(at).map(|part| (*part).to_owned());
        Some(Target {
            version: group[1..].join("/"),
            plural: part(0)?,
            namespace: namespace.map(str::to_owned),
            name: part(1),
            subresource: part(2),
        })
    }

    /// True if this list contains the object.
    pub(super) fn contains(&self, key: &Key) -> bool {
        *self.version == *key.version
            && *self.plural == *key.plural
            && (self.namespace.is_none() || self.namespace.as_deref() == key.namespace.as_deref())
            && self.name.as_deref().is_none_or(|name| name == &*key.name)
    }

    /// Returns the key of the object with this name in the target's collection.
    pub(super) fn key(&self, name: &str) -> Key {
        Key {
            version: self.version.as_str().into(),
            plural: self.plural.as_str().into(),
            namespace: self.namespace.as_deref().map(Arc::from),
            name: name.into(),
        }
    }
}
