//! Paths of requests and objects.

use serde_json::Value;

/// The identity of an object. Lists are in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// `v1`, `storage.k8s.io/v1`, …
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl Key {
    /// Returns the key from an object's kind and name.
    pub(super) fn of(object: &Value) -> Key {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let kind = object["kind"].as_str().expect("a kind");
        Key {
            version: text(&object["apiVersion"]).expect("a version"),
            plural: plural_of(kind),
            namespace: text(&object["metadata"]["namespace"]),
            name: text(&object["metadata"]["name"]).expect("a name"),
        }
    }

    pub(super) fn path(&self) -> String {
        let Key { version, plural, name, .. } = self;
        let root = if version.contains('/') { "/apis" } else { "/api" };
        match &self.namespace {
            None => format!("{root}/{version}/{plural}/{name}"),
            Some(namespace) => format!("{root}/{version}/namespaces/{namespace}/{plural}/{name}"),
        }
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
        self.version == key.version
            && self.plural == key.plural
            && (self.namespace.is_none() || self.namespace == key.namespace)
    }

    /// Returns the key of the object with this name in the target's collection.
    pub(super) fn key(&self, name: &str) -> Key {
        Key {
            version: self.version.clone(),
            plural: self.plural.clone(),
            namespace: self.namespace.clone(),
            name: name.to_owned(),
        }
    }
}
