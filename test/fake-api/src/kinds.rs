//! The kinds that the server serves, and its answers about itself.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Answer;
use super::failure::Failure;
use super::path::{Target, plural_of};
use super::store::Store;

/// The built-in kinds by version: those in namespaces, then the others. A star marks a kind with a
/// status subresource.
const KINDS: [(&str, &str, &str); 12] = [
    (
        "v1",
        "ConfigMap Event PersistentVolumeClaim* Pod* Secret Service* ServiceAccount",
        "Namespace* Node* PersistentVolume*",
    ),
    (
        "apps/v1",
        "DaemonSet* Deployment* ReplicaSet* StatefulSet*",
        "",
    ),
    ("batch/v1", "Job*", ""),
    (
        "storage.k8s.io/v1",
        "CSIStorageCapacity",
        "CSIDriver CSINode StorageClass VolumeAttachment* VolumeAttributesClass",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "Role RoleBinding",
        "ClusterRole ClusterRoleBinding",
    ),
    ("authentication.k8s.io/v1", "", "TokenReview"),
    ("authorization.k8s.io/v1", "", "SubjectAccessReview"),
    ("networking.k8s.io/v1", "NetworkPolicy", ""),
    ("flowcontrol.apiserver.k8s.io/v1", "", "FlowSchema*"),
    ("coordination.k8s.io/v1", "Lease", ""),
    (
        "admissionregistration.k8s.io/v1",
        "",
        "ValidatingAdmissionPolicy* ValidatingAdmissionPolicyBinding",
    ),
    ("apiextensions.k8s.io/v1", "", "CustomResourceDefinition*"),
];

/// The built-in kinds of objects with a generation.
const WITH_GENERATION: [&str; 10] = [
    "CSIDriver",
    "CustomResourceDefinition",
    "DaemonSet",
    "Deployment",
    "FlowSchema",
    "Job",
    "NetworkPolicy",
    "ReplicaSet",
    "StatefulSet",
    "ValidatingAdmissionPolicy",
];

/// The plural of the kind that defines others.
pub(super) const DEFINITIONS: &str = "customresourcedefinitions";

/// A kind that is served.
pub(super) struct Kind {
    /// `v1`, `storage.k8s.io/v1`, …
    pub(super) version: String,
    pub(super) kind: String,
    pub(super) plural: String,
    is_namespaced: bool,
    pub(super) has_status: bool,
    /// True for a kind of a CustomResourceDefinition.
    pub(super) is_custom: bool,
}

impl Kind {
    /// True if a write of the status leaves the metadata unchanged.
    pub(super) fn protects_metadata(&self) -> bool {
        self.is_custom || self.plural == "volumeattachments"
    }

    /// True if objects count the changes of their content.
    pub(super) fn has_generation(&self) -> bool {
        self.is_custom || WITH_GENERATION.contains(&self.kind.as_str())
    }
}

/// The definitions of the snapshot API, without schemas.
pub(super) fn snapshot_definitions() -> impl Iterator<Item = Value> {
    let groups = [
        ("snapshot.storage.k8s.io", "VolumeSnapshot"),
        ("groupsnapshot.storage.k8s.io", "VolumeGroupSnapshot"),
    ];
    let ends = [
        ("", "Namespaced"),
        ("Content", "Cluster"),
        ("Class", "Cluster"),
    ];
    groups.into_iter().flat_map(move |(group, stem)| {
        ends.into_iter().map(move |(end, scope)| {
            let kind = format!("{stem}{end}");
            let plural = plural_of(&kind);
            let subresources = if end == "Class" {
                json!({})
            } else {
                json!({"status": {}})
            };
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.{group}")},
                "spec": {"group": group, "scope": scope, "names": {"kind": kind, "plural": plural},
                    "versions": [{"name": "v1", "served": true, "subresources": subresources}]}})
        })
    })
}

impl Store {
    /// The served kinds.
    pub(super) fn kinds(&mut self) -> Arc<[Arc<Kind>]> {
        if let Some(kinds) = &self.kinds {
            return kinds.clone();
        }
        let kinds: Arc<[Arc<Kind>]> = self.find_kinds().into_iter().map(Arc::new).collect();
        self.kinds = Some(kinds.clone());
        kinds
    }

    fn find_kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for (version, namespaced, others) in KINDS {
            for (names, is_namespaced) in [(namespaced, true), (others, false)] {
                kinds.extend(names.split_whitespace().map(|name| Kind {
                    version: version.to_owned(),
                    kind: name.trim_end_matches('*').to_owned(),
                    plural: plural_of(name.trim_end_matches('*')),
                    is_namespaced,
                    has_status: name.ends_with('*'),
                    is_custom: false,
                }));
            }
        }
        let definitions = self
            .objects
            .iter()
            .filter(|(key, _)| &*key.plural == DEFINITIONS);
        for spec in definitions.map(|(_, definition)| &definition["spec"]) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let versions = spec["versions"].as_array().into_iter().flatten();
            kinds.extend(
                versions
                    .filter(|version| version["served"] == true)
                    .map(|version| Kind {
                        version: format!("{}/{}", text(&spec["group"]), text(&version["name"])),
                        kind: text(&spec["names"]["kind"]),
                        plural: text(&spec["names"]["plural"]),
                        is_namespaced: spec["scope"] == "Namespaced",
                        has_status: version["subresources"]["status"].is_object(),
                        is_custom: true,
                    }),
            );
        }
        kinds.retain(|kind| !self.lacking.contains(kind.plural.as_str()));
        kinds
    }

    /// Returns the kind of a target if it is served.
    pub(super) fn kind(&mut self, target: &Target) -> Option<Arc<Kind>> {
        let kinds = self.kinds();
        let is_it =
            |kind: &&Arc<Kind>| (&kind.version, &kind.plural) == (&target.version, &target.plural);
        kinds.iter().find(is_it).cloned()
    }

    /// Answers a request for the kinds of a version.
    pub(super) fn discovery(&mut self, path: &str) -> Answer {
        if path == "/version" {
            return Ok((200, version(36)));
        }
        let version = path
            .strip_prefix("/apis/")
            .or_else(|| path.strip_prefix("/api/"));
        let kinds = self.kinds();
        let resources: Vec<Value> = kinds
            .iter()
            .filter(|kind| Some(&*kind.version) == version)
            .map(|kind| {
                json!({"name": kind.plural, "kind": kind.kind, "namespaced": kind.is_namespaced,
                    "singularName": kind.kind.to_lowercase(),
                    "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"]})
            })
            .collect();
        if resources.is_empty() {
            return Err(Failure::no_resource());
        }
        let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
            "resources": resources});
        Ok((200, list))
    }
}

/// The answer about the version of a server of Kubernetes 1.`minor`.
pub(super) fn version(minor: u32) -> Value {
    json!({"major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.0"),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
        "platform": ""})
}
