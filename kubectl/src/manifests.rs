//! The objects that `install` applies: those of `deploy/`, embedded when the program is built.
//!
//! kustomize stays their only source. [`Component`] applies a component of `deploy/components` as
//! kustomize does, and [`Settings`] does what `scripts/render` does with its options.

use std::fmt;

use hostloop_api_objects::snapshot_crds;
use serde_json::Value;

use super::NAME_LABEL;

mod component;
mod fields;
#[cfg(test)]
mod krew;
mod server;
mod settings;

pub(super) use component::Component;
pub(super) use fields::field;
pub(super) use server::{Fitted, Version, fit};
pub(super) use settings::{
    Class, DEFAULT_CLASS, Installed, KERNELS, Kernels, Pool, Settings, Snapshots, base_image,
    repository, usual_pools,
};

/// The field manager of what `install` applies.
pub(super) const MANAGER: &str = "kubectl-hostloop";

const BASE: &str = include_str!("../../deploy/hostloop.yaml");

const METADATA_CRD: &str = include_str!("../../deploy/components/snapshot-metadata/crd.yaml");

/// Identifies an object: what a request needs, and what messages name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectKey {
    /// `apiVersion`.
    pub(super) version: String,
    pub(super) kind: String,
    /// Empty if the kind has no namespace.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl ObjectKey {
    pub(super) fn new(version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        ObjectKey {
            version: version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub(super) fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        ObjectKey {
            version: text(&object["apiVersion"]),
            kind: text(&object["kind"]),
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// A text; an empty one for any other value.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// True if an object in the cluster is hostloop's: by its label, or because `install` applied it.
pub(super) fn is_ours(object: &Value) -> bool {
    let (label, value) = NAME_LABEL;
    object["metadata"]["labels"][label] == value || is_applied(object)
}

/// True if `install` applied an object in the cluster.
pub(super) fn is_applied(object: &Value) -> bool {
    let managers = object["metadata"]["managedFields"].as_array();
    managers.is_some_and(|managers| managers.iter().any(|field| field["manager"] == MANAGER))
}

/// The Helm release that an object belongs to.
pub(super) fn helm_release(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"]["meta.helm.sh/release-name"].as_str()
}

/// The base's objects.
fn base() -> Vec<Value> {
    parse(BASE)
}

/// The CustomResourceDefinitions of the snapshot kinds.
pub(super) fn crds() -> Vec<Value> {
    snapshot_crds::FILES.into_iter().flat_map(parse).collect()
}

/// The CustomResourceDefinition of SnapshotMetadataService. Backup tools find the service there.
pub(super) fn metadata_crd() -> Value {
    parse(METADATA_CRD).remove(0)
}

/// The documents of an embedded file.
fn parse(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).expect("tests read each embedded file")
}

/// The objects as the documents of one YAML file.
pub(super) fn to_yaml(objects: &[Value]) -> String {
    let documents = objects.iter().map(|object| {
        let text = serde_saphyr::to_string(object).expect("a JSON value has a form in YAML");
        format!("---\n{}\n", text.trim_end())
    });
    documents.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_object_has_a_key() {
        let all: Vec<Value> = base().into_iter().chain(crds()).collect();
        assert!(all.len() > 40, "{} objects", all.len());
        for object in &all {
            let key = ObjectKey::of(object);
            assert!(!key.version.is_empty() && !key.kind.is_empty(), "{object}");
            assert!(!key.name.is_empty(), "{object}");
        }
    }

    /// Uninstalling finds objects by this label.
    #[test]
    fn every_object_of_the_base_has_the_label() {
        let (key, value) = crate::NAME_LABEL;
        for object in base() {
            assert_eq!(
                object["metadata"]["labels"][key],
                value,
                "{}",
                ObjectKey::of(&object)
            );
        }
    }

    #[test]
    fn yaml_reads_back_as_it_was() {
        let odd = serde_json::json!({"a": ["true", "1", "", null, 1, "no", "x: y", "#", "a\nb\n", "- c"],
            "b": {}, "c": [], "d": "a long line, which is longer than eighty characters: 'quoted' \"twice\" "});
        let all: Vec<Value> = base().into_iter().chain(crds()).chain([odd]).collect();
        assert_eq!(parse(&to_yaml(&all)), all);
    }

    #[test]
    fn keys_name_the_namespace_if_there_is_one() {
        for (namespace, said) in [("", "ConfigMap a"), ("n", "ConfigMap n/a")] {
            let object = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "a", "namespace": namespace}});
            assert_eq!(ObjectKey::of(&object).to_string(), said);
        }
    }
}
