//! Applies components of `deploy/components` to objects, as kustomize does.

use serde::Deserialize;
use serde_json::Value;

use super::fields::{field, field_mut, merge};
use super::{ObjectKey, parse};

/// A component: its `kustomization.yaml`, and the files that this names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Component {
    kustomization: &'static str,
    resources: &'static [&'static str],
}

/// Embeds a component of `deploy/`.
macro_rules! component {
    ($name:literal $(, $resource:literal)*) => {
        Component {
            kustomization: include_str!(
                concat!("../../../deploy/", $name, "/kustomization.yaml")
            ),
            resources: &[$(
                include_str!(concat!("../../../deploy/", $name, "/", $resource))
            ),*],
        }
    };
}

impl Component {
    pub(super) const ATTACH: Component = component!("components/attach");
    pub(super) const GROUP_SNAPSHOT_CLASS: Component =
        component!("components/group-snapshot-class", "class.yaml");
    pub(super) const HOST_PATHS: Component = component!("components/host-paths");
    /// A pool in one bounded image.
    pub(crate) const IMAGE_POOL: Component = component!("components/image-pool");
    /// What API servers before 1.34 do not know.
    pub(super) const KUBERNETES_1_30: Component = component!("components/kubernetes-1.30");
    /// The pool's directory on minikube's nodes.
    pub(crate) const MINIKUBE_POOL: Component = component!("overlays/minikube/pool-dir");
    /// The pool's directory on Talos' nodes.
    pub(crate) const TALOS_POOL: Component = component!("overlays/talos/pool-dir");
    pub(super) const REGISTRY: Component = component!("components/registry");
    pub(super) const SNAPSHOT_CLASS: Component =
        component!("components/snapshot-class", "class.yaml");
    pub(super) const SNAPSHOT_CONTROLLER: Component =
        component!("components/snapshot-controller", "rbac.yaml");

    /// Adds the component's objects, then changes objects by its patches and replacements.
    pub(super) fn apply(&self, objects: &mut Vec<Value>) {
        objects.extend(self.resources.iter().flat_map(|text| parse(text)));
        let kustomization: Kustomization =
            serde_saphyr::from_str(self.kustomization).expect("tests apply each component");
        for patch in &kustomization.patches {
            let change: Value =
                serde_saphyr::from_str(&patch.patch).expect("tests apply each patch");
            if change["$patch"] == "delete" {
                objects.retain(|object| !patch.target.selects(object));
            }
            for object in objects
                .iter_mut()
                .filter(|object| patch.target.selects(object))
            {
                match &change {
                    Value::Array(_) => {
                        let steps: json_patch::Patch = serde_json::from_value(change.clone())
                            .expect("tests apply each JSON patch");
                        json_patch::patch(object, &steps).expect("tests apply each JSON patch");
                    }
                    change => merge(object, change),
                }
            }
        }
        for replacement in &kustomization.replacements {
            replacement.apply(objects);
        }
    }
}

/// The parts of a `kustomization.yaml` that the components have.
#[derive(Deserialize)]
struct Kustomization {
    #[serde(default)]
    patches: Vec<PatchOf>,
    #[serde(default)]
    replacements: Vec<Replacement>,
}

/// A patch: a list of JSON patch operations, or an object to merge.
#[derive(Deserialize)]
struct PatchOf {
    target: Selector,
    patch: String,
}

/// Selects objects.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    /// Kinds, separated by `|`.
    kind: Option<String>,
    name: Option<String>,
    /// `key=value`.
    label_selector: Option<String>,
}

impl Selector {
    fn selects(&self, object: &Value) -> bool {
        let key = ObjectKey::of(object);
        let has_label = self.label_selector.as_deref().is_none_or(|selector| {
            let (label, value) = selector.split_once('=').unwrap_or((selector, ""));
            object["metadata"]["labels"][label] == value
        });
        self.kind
            .as_ref()
            .is_none_or(|kinds| kinds.split('|').any(|kind| kind == key.kind))
            && self.name.as_ref().is_none_or(|name| *name == key.name)
            && has_label
    }
}

/// Copies a field to other fields.
#[derive(Deserialize)]
struct Replacement {
    source: Source,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    #[serde(flatten)]
    object: Selector,
    field_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    select: Selector,
    field_paths: Vec<String>,
}

impl Replacement {
    fn apply(&self, objects: &mut [Value]) {
        let source = objects
            .iter()
            .find(|object| self.source.object.selects(object));
        let value = source
            .and_then(|object| field(object, &self.source.field_path))
            .cloned();
        let value = value.expect("tests apply each replacement");
        for target in &self.targets {
            for object in objects
                .iter_mut()
                .filter(|object| target.select.selects(object))
            {
                for path in &target.field_paths {
                    *field_mut(object, path).expect("tests apply each replacement") = value.clone();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::base;

    #[test]
    fn each_component_applies_to_the_base() {
        for (name, component, further) in [
            ("kubernetes-1.30", Component::KUBERNETES_1_30, -3),
            ("attach", Component::ATTACH, 0),
            ("group-snapshot-class", Component::GROUP_SNAPSHOT_CLASS, 1),
            ("host-paths", Component::HOST_PATHS, 0),
            ("image-pool", Component::IMAGE_POOL, 0),
            ("pool-dir of minikube", Component::MINIKUBE_POOL, 0),
            ("pool-dir of Talos", Component::TALOS_POOL, 0),
            ("registry", Component::REGISTRY, 0),
            ("snapshot-class", Component::SNAPSHOT_CLASS, 1),
            ("snapshot-controller", Component::SNAPSHOT_CONTROLLER, 4),
        ] {
            let mut objects = base();
            let before = objects.clone();
            component.apply(&mut objects);
            assert_eq!(
                objects.len(),
                before.len().wrapping_add_signed(further),
                "{name}"
            );
            // The base has its own paths already.
            assert_eq!(objects == before, name == "host-paths", "{name}");
        }
    }

    #[test]
    fn selectors() {
        let object = serde_json::json!({"kind": "Deployment",
            "metadata": {"name": "a", "labels": {"app": "x"}}});
        let text = |text: &str| Some(text.to_owned());
        for (kind, name, label_selector, selects) in [
            (None, None, None, true),
            (text("DaemonSet|Deployment"), None, None, true),
            (text("DaemonSet"), None, None, false),
            (None, text("a"), None, true),
            (None, text("b"), None, false),
            (None, None, text("app=x"), true),
            (None, None, text("app=y"), false),
        ] {
            let selector = Selector {
                kind,
                name,
                label_selector,
            };
            assert_eq!(selector.selects(&object), selects);
        }
    }
}
