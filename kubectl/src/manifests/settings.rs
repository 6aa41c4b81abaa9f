//! What a person can choose about the objects, and the objects for a choice.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::component::Component;
use super::fields::{field, field_mut, merge};
use super::{ObjectKey, base};

mod installed;
mod pool;

pub(crate) use installed::Installed;
pub(crate) use pool::Pool;

/// The annotation of the cluster's default StorageClass.
pub(crate) const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// The ConfigMap that says which nodes share a kernel.
pub(crate) const KERNELS: &str = "hostloop-kernels";

/// Its data: the names of a kernel's nodes, separated by blanks.
pub(crate) type Kernels = BTreeMap<String, String>;

/// The container of the DaemonSet, and its fields.
const CONTAINER: &str = "spec.template.spec.containers.[name=hostloop]";

/// The classes of the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Class {
    /// Thin volumes with ext4.
    Ext4,
    /// Thin volumes with XFS.
    Xfs,
    /// Thin volumes with btrfs.
    Btrfs,
    /// Volumes with ext4 and all their space allocated.
    Thick,
}

impl Class {
    /// The name of its StorageClass.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Class::Ext4 => "hostloop-ext4",
            Class::Xfs => "hostloop-xfs",
            Class::Btrfs => "hostloop-btrfs",
            Class::Thick => "hostloop-thick",
        }
    }

    /// The class with this name.
    pub(crate) fn named(name: &str) -> Option<Class> {
        <Class as clap::ValueEnum>::value_variants()
            .iter()
            .copied()
            .find(|c| c.name() == name)
    }
}

/// Which objects for snapshots are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshots {
    /// A VolumeSnapshotClass.
    pub(crate) class: bool,
    /// A VolumeGroupSnapshotClass.
    pub(crate) group_class: bool,
    /// hostloop is the cluster's snapshot controller.
    pub(crate) controller: bool,
}

/// What a person can choose. The default is the base as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The driver's usual name if `None`.
    pub(crate) driver_name: Option<String>,
    pub(crate) kubelet_dir: Option<String>,
    /// The base's pool if empty.
    pub(crate) pools: Vec<Pool>,
    pub(crate) attach: bool,
    /// The nodes that share a kernel; `None` if volumes stay on their node. It goes with `attach`.
    pub(crate) kernels: Option<Kernels>,
    /// Volumes fail on request.
    pub(crate) faults: bool,
    /// Backup tools read changed blocks.
    pub(crate) snapshot_metadata: bool,
    pub(crate) snapshots: Snapshots,
    pub(crate) default_class: Option<Class>,
    /// The image of the base if `None`.
    pub(crate) image: Option<String>,
}

impl Settings {
    /// The objects in the order of their application: workloads last, so that they find their
    /// rights and policies. CustomResourceDefinitions are not among them.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let mut objects = base();
        for (is_chosen, component) in [
            (self.snapshots.class, Component::SNAPSHOT_CLASS),
            (self.snapshots.group_class, Component::GROUP_SNAPSHOT_CLASS),
            (self.snapshots.controller, Component::SNAPSHOT_CONTROLLER),
            (self.attach, Component::ATTACH),
            (self.kernels.is_some(), Component::SHARED_KERNEL),
            (self.kernels.is_some(), Component::KERNEL_POLICIES),
            (self.faults, Component::FAULTS),
            (self.snapshot_metadata, Component::SNAPSHOT_METADATA),
            (
                self.image.as_ref().is_some_and(|image| is_pulled(image)),
                Component::REGISTRY,
            ),
        ] {
            if is_chosen {
                component.apply(&mut objects);
            }
        }
        if let Some(name) = &self.driver_name {
            Component::apply_driver_name(name, &mut objects);
        }
        self.set_variables(&mut objects);
        Component::HOST_PATHS.apply(&mut objects);
        self.set_pools(&mut objects);
        self.set_kernels(&mut objects);
        self.set_image(&mut objects);
        self.set_default_class(&mut objects);
        objects
            .sort_by_key(|object| object["kind"] == "Deployment" || object["kind"] == "DaemonSet");
        objects
    }

    /// These settings with all components that an installation may ask for.
    fn with_all_components(&self) -> Settings {
        Settings {
            kernels: Some(Kernels::new()),
            faults: true,
            snapshot_metadata: true,
            snapshots: Snapshots {
                controller: true,
                ..self.snapshots
            },
            ..self.clone()
        }
    }

    /// The objects of components that these settings do not ask for. What the controller keeps in
    /// Secrets and ConfigMaps stays for the next time, and classes of snapshots stay for the objects that
    /// name them.
    pub(crate) fn unrequested(&self) -> Vec<ObjectKey> {
        let requested: BTreeSet<ObjectKey> = self.objects().iter().map(ObjectKey::of).collect();
        let all = self.with_all_components().objects();
        all.iter()
            .map(ObjectKey::of)
            .filter(|key| !requested.contains(key))
            .filter(|key| {
                key.name == KERNELS || !["Secret", "ConfigMap"].contains(&key.kind.as_str())
            })
            .collect()
    }

    /// The environment of the container, as `scripts/render` patches it.
    fn set_variables(&self, objects: &mut [Value]) {
        let first = self.pools.first();
        let options = first
            .map(|pool| &pool.options)
            .filter(|options| !options.is_empty());
        let chosen = [
            ("KUBELET_DIR", self.kubelet_dir.as_ref()),
            ("POOL_DIR", first.map(|pool| &pool.path)),
            ("POOL_OPTIONS", options),
        ];
        let given = chosen
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let patch = given
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        let variables = field_mut(daemon_set(objects), &format!("{CONTAINER}.env"));
        merge(
            variables.expect("the base has this list"),
            &Value::Array(patch),
        );
    }

    /// Pools that are not like the base's: another name, further pools, block devices.
    fn set_pools(&self, objects: &mut [Value]) {
        let Some((first, further)) = self.pools.split_first() else {
            return;
        };
        let daemon_set = daemon_set(objects);
        let value = field_mut(
            daemon_set,
            &format!("{CONTAINER}.env.[name=HOSTLOOP_POOL].value"),
        );
        let further: String = further.iter().map(|pool| format!(";{pool}")).collect();
        *value.expect("the base has this variable") = json!(format!(
            "{}=$(POOL_DIR)$(POOL_OPTIONS){further}",
            first.name
        ));
        let mounts = list_mut(daemon_set, &format!("{CONTAINER}.volumeMounts"));
        set_directories(
            mounts,
            &self.pools,
            |name, path| json!({"name": name, "mountPath": path, "mountPropagation": "HostToContainer"}),
        );
        let volumes = list_mut(daemon_set, "spec.template.spec.volumes");
        set_directories(
            volumes,
            &self.pools,
            |name, path| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}),
        );
    }

    fn set_kernels(&self, objects: &mut [Value]) {
        let Some(kernels) = &self.kernels else {
            return;
        };
        let object = objects
            .iter_mut()
            .find(|object| object["kind"] == "ConfigMap" && object["metadata"]["name"] == KERNELS)
            .expect("the component has this object");
        object["data"] = json!(kernels);
    }

    fn set_image(&self, objects: &mut [Value]) {
        let Some(image) = &self.image else {
            return;
        };
        for object in objects {
            let containers = field_mut(object, "spec.template.spec.containers");
            for container in containers
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                container["image"] = json!(image);
            }
        }
    }

    fn set_default_class(&self, objects: &mut [Value]) {
        let Some(class) = self.default_class else {
            return;
        };
        let object = objects
            .iter_mut()
            .find(|object| {
                object["kind"] == "StorageClass" && object["metadata"]["name"] == class.name()
            })
            .expect("the base has every class");
        object["metadata"]["annotations"][DEFAULT_CLASS] = json!("true");
    }
}

pub(crate) fn base_image() -> String {
    let mut objects = base();
    let image = field(daemon_set(&mut objects), &format!("{CONTAINER}.image")).cloned();
    image
        .and_then(|image| image.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// The pools of the base with these components.
pub(crate) fn usual_pools(components: &[Component]) -> Vec<Pool> {
    let mut objects = base();
    components
        .iter()
        .for_each(|component| component.apply(&mut objects));
    Installed::of(daemon_set(&mut objects), None).pools
}

/// The repository of an image: its name without tag and digest.
pub(crate) fn repository(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    // A colon before a slash belongs to the host's port.
    match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    }
}

/// True if nodes pull the image. No registry serves the base's.
fn is_pulled(image: &str) -> bool {
    repository(image) != repository(&base_image())
}

fn daemon_set(objects: &mut [Value]) -> &mut Value {
    let found = objects
        .iter_mut()
        .find(|object| object["kind"] == "DaemonSet");
    found.expect("the base has a DaemonSet")
}

fn list_mut<'a>(object: &'a mut Value, path: &str) -> &'a mut Vec<Value> {
    field_mut(object, path)
        .and_then(Value::as_array_mut)
        .expect("the base has this list")
}

/// Replaces the volume or mount of the base's pool by those of all pools that are directories. The
/// base already has all block devices.
fn set_directories(items: &mut Vec<Value>, pools: &[Pool], item: impl Fn(&str, &str) -> Value) {
    let at = items.iter().position(|one| one["name"] == pool::VOLUME);
    let at = at.expect("the base has the pool's directory");
    let made = pools
        .iter()
        .enumerate()
        .filter(|(_, pool)| !pool.is_device())
        .map(|(n, pool)| item(&pool::volume(n), &pool.path));
    drop(items.splice(at..=at, made.collect::<Vec<_>>()));
}

#[cfg(test)]
mod tests;
