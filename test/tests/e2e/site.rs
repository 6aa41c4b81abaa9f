//! The nodes, and the driver on each of them.

use std::path::{Path, PathBuf};

use hostloop_api_objects::lease_name::leader_lease;
use hostloop_test::cluster::Node;
use hostloop_test::deployed::{DRIVER, NAMESPACE};
use hostloop_test::leaks::Mounted;
use parking_lot::MutexGuard;
use serde_json::Value;

use crate::objects::{name, text};
use crate::space::staging;
use crate::world::{TOPOLOGY, World, check, is_ready};

/// A node, and the driver's files on it.
pub(crate) struct Site<'w> {
    /// The cluster.
    pub(crate) world: &'w World,
    /// The node's number, counted from 1.
    pub(crate) count: u32,
    node: Node,
}

impl World {
    /// Returns a node, counted from 1.
    pub(crate) fn site(&self, count: u32) -> Site<'_> {
        let node = self.cluster().on(count);
        Site {
            world: self,
            count,
            node,
        }
    }

    /// All nodes.
    pub(crate) fn sites(&self) -> Vec<Site<'_>> {
        (1..=self.cluster().nodes()).map(|n| self.site(n)).collect()
    }

    /// The node of this name.
    pub(crate) fn site_of(&self, node: &str) -> Site<'_> {
        let found = self.sites().into_iter().find(|site| site.name() == node);
        found.unwrap_or_else(|| panic!("there is no node {node:?}"))
    }

    /// The node of a volume, from its node affinity.
    pub(crate) fn home(&self, volume: &Value) -> Site<'_> {
        let term = volume.pointer("/spec/nodeAffinity/required/nodeSelectorTerms/0");
        let expressions = term.and_then(|t| t["matchExpressions"].as_array());
        let mut all = expressions.into_iter().flatten();
        let node = all.find(|e| text(e, "/key") == TOPOLOGY);
        self.site_of(node.map_or("", |e| text(e, "/values/0")))
    }

    /// Waits until the driver serves on every node, and the controller leads.
    pub(crate) fn drivers_ready(&self) {
        for site in self.sites() {
            site.driver_ready();
        }
        self.controller_ready();
    }

    /// The controller's pod that is not being deleted.
    pub(crate) fn controller_pod(&self) -> Option<Value> {
        self.pod_of("hostloop-controller", |_| true)
    }

    /// A pod with this `app.kubernetes.io/name` that is not being deleted.
    fn pod_of(&self, app: &str, is: impl Fn(&Value) -> bool) -> Option<Value> {
        let pods = self.list("Pod", NAMESPACE);
        pods.into_iter().find(|pod| {
            text(pod, "/metadata/labels/app.kubernetes.io~1name") == app
                && pod.pointer("/metadata/deletionTimestamp").is_none()
                && is(pod)
        })
    }

    /// Waits until the Deployment is rolled out and its pod leads.
    fn controller_ready(&self) {
        self.until("the controller", || {
            let deployment = self.get("Deployment", NAMESPACE, "hostloop-controller");
            let status = &deployment["status"];
            let current = deployment["metadata"]["generation"] == status["observedGeneration"]
                && status["replicas"] == 1
                && status["updatedReplicas"] == 1
                && status["availableReplicas"] == 1;
            let lease = leader_lease(DRIVER);
            let lease = self.find("Lease", NAMESPACE, &lease).unwrap_or_default();
            let pod = self.controller_pod().ok_or("there is no pod")?;
            let leads = text(&lease, "/spec/holderIdentity") == name(&pod);
            let seen = || format!("{status}; pod: {}; {}", pod["status"], lease["spec"]);
            check(current && leads, seen)
        });
    }
}

impl<'w> Site<'w> {
    /// Waits until no other test disturbs this node. Hold the guard until the test ends.
    pub(crate) fn alone(&self) -> MutexGuard<'w, ()> {
        let count = usize::try_from(self.count).expect("few nodes");
        self.world.turns[count - 1].lock()
    }
}

impl Site<'_> {
    /// The node's name.
    pub(crate) fn name(&self) -> &str {
        &self.node.name
    }

    /// The node's kubelet, as a part of the cluster.
    pub(crate) fn kubelet(&self) -> String {
        format!("kubelet-{}", self.count)
    }

    /// The path on this machine of a node's file.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        self.node.path(path)
    }

    /// Kubelet's root, as a path on this machine.
    pub(crate) fn kubelet_dir(&self) -> PathBuf {
        self.path(&self.node.kubelet_dir)
    }

    /// The folder in which kubelet stages a volume, as a path on this machine.
    pub(crate) fn staging(&self, handle: &str) -> PathBuf {
        staging(&self.kubelet_dir(), handle)
    }

    /// The directory of the driver's socket and state, as a path on this machine.
    pub(crate) fn plugin_dir(&self) -> PathBuf {
        self.path(&self.world.plugin_dir())
    }

    /// The pool's root, as a path on this machine.
    pub(crate) fn pool(&self) -> PathBuf {
        self.path(&self.world.pool_root())
    }

    /// The pool's identity, which is part of its volumes' IDs.
    pub(crate) fn pool_id(&self) -> String {
        let read = std::fs::read(self.pool().join("pool.json"));
        let record: Value = serde_json::from_slice(&read.expect("the pool has a record"))
            .expect("the record is JSON");
        text(&record, "/id").to_owned()
    }

    /// The pool's volumes: the ID of each, and the name from its CreateVolume request.
    pub(crate) fn volumes(&self) -> Vec<(String, String)> {
        let entries = std::fs::read_dir(self.pool().join("volumes"));
        let entries = entries.expect("the pool is mounted").flatten();
        let read = |folder: PathBuf| {
            // A volume that is being deleted has no record.
            let read = std::fs::read(folder.join("volume.json")).ok()?;
            let record: Value = serde_json::from_slice(&read).ok()?;
            let id = folder.file_name()?.to_str()?.to_owned();
            Some((id, text(&record, "/name").to_owned()))
        };
        entries.filter_map(|entry| read(entry.path())).collect()
    }

    /// The mounts beneath kubelet's root, by their paths on the node.
    pub(crate) fn mounts(&self) -> Vec<Mounted> {
        let mut all = self.node.mounts();
        all.retain(|m| m.at.starts_with(&self.node.kubelet_dir));
        all
    }

    /// The mounts of loop devices with this word in their path, such as a pod's UID.
    pub(crate) fn mounts_with(&self, word: &str) -> Vec<Mounted> {
        let mut all = self.mounts();
        all.retain(|m| m.on_loop() && m.at.to_string_lossy().contains(word));
        all
    }

    /// The driver's pod that is not being deleted.
    pub(crate) fn driver_pod(&self) -> Option<Value> {
        let here = |pod: &Value| text(pod, "/spec/nodeName") == self.name();
        self.world.pod_of("hostloop", here)
    }

    /// The driver's pods, also those that are being deleted.
    pub(crate) fn driver_pods(&self) -> Vec<Value> {
        let mut pods = self.world.list("Pod", NAMESPACE);
        pods.retain(|pod| {
            text(pod, "/metadata/labels/app.kubernetes.io~1name") == "hostloop"
                && text(pod, "/spec/nodeName") == self.name()
        });
        pods
    }

    /// Waits until the driver is ready for pods, and returns its pod.
    pub(crate) fn driver_ready(&self) -> Value {
        let what = format!("the driver's pod on {}", self.name());
        self.world.until(&what, || {
            let pod = self.driver_pod().ok_or("there is no pod")?;
            let set = self.world.get("DaemonSet", NAMESPACE, "hostloop");
            let wanted = "/metadata/annotations/deprecated.daemonset.template.generation";
            let wanted = text(&set, wanted);
            let current = text(&pod, "/metadata/labels/pod-template-generation") == wanted;
            let registered = self.driver_of_node().is_some();
            let seen = || format!("pod: {}; registered: {registered}", pod["status"]);
            check(current && is_ready(&pod) && registered, seen).map(|()| pod.clone())
        })
    }

    /// The driver's entry in the CSINode, if it is registered with kubelet.
    pub(crate) fn driver_of_node(&self) -> Option<Value> {
        let node = self.world.find("CSINode", "", self.name())?;
        let drivers = node.pointer("/spec/drivers").and_then(Value::as_array);
        let mut all = drivers.into_iter().flatten();
        all.find(|d| text(d, "/name") == DRIVER).cloned()
    }

    /// Deletes the driver's pod, and waits for its successor.
    pub(crate) fn restart_driver(&self) -> Value {
        let old = self.driver_ready();
        self.world.remove("Pod", NAMESPACE, name(&old));
        self.driver_ready()
    }
}
