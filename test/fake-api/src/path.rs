//! Paths of requests and objects.

use serde_json::Value;

pub(super) const STORAGE: &str = "/apis/storage.k8s.io/v1";
pub(super) const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1";
pub(super) const GROUP_SNAPSHOTS: &str = "/apis/groupsnapshot.storage.k8s.io/v1";

/// The identity of an object. Lists are in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// `/api/v1`, `/apis/storage.k8s.io/v1`, …
    pub(super) group: String,
    pub(super) plural: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl Key {
    /// Returns the key from an object's kind and name.
    pub(super) fn of(object: &Value) -> Key {
        let kind = object["kind"].as_str().expect("a kind");
        let lower = kind.to_lowercase();
        let plural = match kind {
            _ if kind.ends_with('s') => format!("{lower}es"),
            _ if kind.ends_with('y') => format!("{}ies", &lower[..lower.len() - 1]),
            _ => format!("{lower}s"),
        };
        let group = match kind {
            "CSIDriver"
            | "CSINode"
            | "CSIStorageCapacity"
            | "StorageClass"
            | "VolumeAttachment"
            | "VolumeAttributesClass" => STORAGE,
            "DaemonSet" | "ReplicaSet" | "StatefulSet" => "/apis/apps/v1",
            "Lease" => "/apis/coordination.k8s.io/v1",
            _ if kind.starts_with("VolumeSnapshot") => SNAPSHOTS,
            _ if kind.starts_with("VolumeGroupSnapshot") => GROUP_SNAPSHOTS,
            _ => "/api/v1",
        };
        let text = |key: &str| object["metadata"][key].as_str().map(str::to_owned);
        Key {
            group: group.to_owned(),
            plural,
            namespace: text("namespace"),
            name: text("name").expect("a name"),
        }
    }

    pub(super) fn path(&self) -> String {
        let (group, plural, name) = (&self.group, &self.plural, &self.name);
        match &self.namespace {
            None => format!("{group}/{plural}/{name}"),
            Some(namespace) => format!("{group}/namespaces/{namespace}/{plural}/{name}"),
        }
    }

    /// True for a custom resource.
    pub(super) fn is_custom(&self) -> bool {
        self.group == SNAPSHOTS || self.group == GROUP_SNAPSHOTS
    }

    /// True if the kind has a status subresource.
    pub(super) fn has_status(&self) -> bool {
        let without = [
            "configmaps",
            "csidrivers",
            "csinodes",
            "csistoragecapacities",
            "events",
            "leases",
            "secrets",
        ];
        !without.contains(&self.plural.as_str()) && !self.plural.ends_with("classes")
    }

    /// True if a write of the status leaves the metadata unchanged.
    pub(super) fn protects_metadata(&self) -> bool {
        self.is_custom() || self.plural == "volumeattachments"
    }
}

/// The target of a path: an object, its status, or the objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) group: String,
    pub(super) plural: String,
    /// The namespace of the object, or the namespace that the list is limited to.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) status: bool,
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
        let (plural, name, status) = match rest {
            [plural] => (plural, None, false),
            [plural, name] => (plural, Some(*name), false),
            [plural, name, "status"] => (plural, Some(*name), true),
            _ => return None,
        };
        Some(Target {
            group: format!("/{}", group.join("/")),
            plural: (*plural).to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            status,
        })
    }

    /// True if this list contains the object.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.group == key.group
            && self.plural == key.plural
            && (self.namespace.is_none() || self.namespace == key.namespace)
    }

    /// Returns the key of an object in the target's collection.
    pub(super) fn key(&self, name: &str) -> Key {
        Key {
            group: self.group.clone(),
            plural: self.plural.clone(),
            namespace: self.namespace.clone(),
            name: name.to_owned(),
        }
    }
}

/// Shortens a path to `ns/kind/name`, without group, version and `namespaces`.
pub(super) fn short(path: &str) -> String {
    let path = path.trim_matches('/');
    let depth = if path.starts_with("api/") { 2 } else { 3 };
    let rest = path.splitn(depth + 1, '/').last().unwrap_or_default();
    match rest.strip_prefix("namespaces/") {
        Some(inner) if inner.contains('/') => inner.to_owned(),
        _ => rest.to_owned(),
    }
}
