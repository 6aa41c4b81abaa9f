//! Applies components of `deploy/components` to objects, as kustomize does.

use hostloop_api_objects::lease_name::leader_lease;
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

/// The driver's name in the component that gives it another one.
const NAMED: &str = "hostpath.csi.k8s.io";

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
    /// Volumes fail on request.
    pub(super) const FAULTS: Component = component!("components/faults", "fault-disks.yaml");
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
    /// Volumes in reach of all nodes that share a kernel. It includes [`Component::ATTACH`] and
    /// [`Component::KERNEL_POLICIES`], which are applied beside it.
    pub(super) const SHARED_KERNEL: Component =
        component!("components/shared-kernel", "kernels.yaml", "classes.yaml");
    /// What the policies allow the nodes of a kernel.
    pub(super) const KERNEL_POLICIES: Component = component!("components/shared-kernel/policies");
    pub(super) const REGISTRY: Component = component!("components/registry");
    pub(super) const SNAPSHOT_CLASS: Component =
        component!("components/snapshot-class", "class.yaml");
    pub(super) const SNAPSHOT_CONTROLLER: Component =
        component!("components/snapshot-controller", "rbac.yaml");
    /// Changed blocks for backup tools.
    pub(super) const SNAPSHOT_METADATA: Component = component!(
        "components/snapshot-metadata",
        "service.yaml",
        "kept.yaml",
        "rbac.yaml",
        "networkpolicy.yaml"
    );
    /// Another name of the driver: [`NAMED`].
    const DRIVER_NAME: Component = component!("components/csi-hostpath/driver-name");

    /// Gives the driver another name, after the components that know it by its usual one.
    pub(super) fn apply_driver_name(name: &str, objects: &mut Vec<Value>) {
        let kustomization = Component::DRIVER_NAME
            .kustomization
            .replace(&leader_lease(NAMED), &leader_lease(name))
            .replace(NAMED, name);
        apply_kustomization(&kustomization, objects);
    }

    /// Adds the component's objects, then changes objects by its patches and replacements.
    pub(super) fn apply(&self, objects: &mut Vec<Value>) {
        objects.extend(self.resources.iter().flat_map(|text| parse(text)));
        apply_kustomization(self.kustomization, objects);
    }
}

/// Changes objects by the patches and replacements of a `kustomization.yaml`.
fn apply_kustomization(text: &str, objects: &mut Vec<Value>) {
    let kustomization: Kustomization =
        serde_saphyr::from_str(text).expect("tests apply each component");
    for patch in &kustomization.patches {
        let change: Value = serde_saphyr::from_str(&patch.patch).expect("tests apply each patch");
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
    target: ObjectSelector,
    patch: String,
}

/// Selects objects.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectSelector {
    /// Kinds, separated by `|`.
    kind: Option<String>,
    name: Option<String>,
    /// `key=value`.
    label_selector: Option<String>,
}

impl ObjectSelector {
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
    source: FieldSource,
    targets: Vec<FieldTarget>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FieldSource {
    #[serde(flatten)]
    object: ObjectSelector,
    field_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FieldTarget {
    select: ObjectSelector,
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
            ("faults", Component::FAULTS, 1),
            ("group-snapshot-class", Component::GROUP_SNAPSHOT_CLASS, 1),
            ("host-paths", Component::HOST_PATHS, 0),
            ("image-pool", Component::IMAGE_POOL, 0),
            ("pool-dir of minikube", Component::MINIKUBE_POOL, 0),
            ("pool-dir of Talos", Component::TALOS_POOL, 0),
            ("registry", Component::REGISTRY, 0),
            ("shared-kernel", Component::SHARED_KERNEL, 3),
            ("policies of shared-kernel", Component::KERNEL_POLICIES, 0),
            ("snapshot-class", Component::SNAPSHOT_CLASS, 1),
            ("snapshot-controller", Component::SNAPSHOT_CONTROLLER, 4),
            ("snapshot-metadata", Component::SNAPSHOT_METADATA, 12),
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

    /// Each object that has the driver's usual name gets the other one, also if YAML would read
    /// that as a number. Only labels, and the topology key of the policies, keep the usual one.
    #[test]
    fn another_driver_name_is_everywhere() {
        for name in ["d.example.com", "1.5"] {
            let mut objects = base();
            Component::SNAPSHOT_CLASS.apply(&mut objects);
            Component::GROUP_SNAPSHOT_CLASS.apply(&mut objects);
            Component::SNAPSHOT_METADATA.apply(&mut objects);
            Component::SHARED_KERNEL.apply(&mut objects);
            Component::apply_driver_name(name, &mut objects);
            let text = serde_json::to_string(&objects).unwrap();
            for usual in ["\"hostloop.csi.dev\"", "'hostloop.csi.dev'"] {
                assert!(!text.contains(usual), "{usual}");
            }
            assert!(!text.contains(&leader_lease("hostloop.csi.dev")));
            assert_eq!(text.matches(&leader_lease(name)).count(), 2);
            for (kind, path, count) in [
                ("CSIDriver", "metadata.name", 1),
                ("StorageClass", "provisioner", 6),
                ("VolumeAttributesClass", "driverName", 3),
                ("VolumeSnapshotClass", "driver", 1),
                ("VolumeGroupSnapshotClass", "driver", 1),
            ] {
                let named = objects
                    .iter()
                    .filter(|object| object["kind"] == kind)
                    .filter(|object| field(object, path).is_some_and(|value| value == name));
                assert_eq!(named.count(), count, "{kind} {name}");
            }
            let role = objects.iter().find(|object| {
                object["kind"] == "ClusterRole"
                    && object["metadata"]["name"] == "hostloop-snapshot-metadata"
            });
            assert_eq!(role.unwrap()["rules"][2]["resourceNames"][0], name);
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
            let selector = ObjectSelector {
                kind,
                name,
                label_selector,
            };
            assert_eq!(selector.selects(&object), selects);
        }
    }
}
