//! The controllers as the built program, with the CSI driver in memory and a real API server, and
//! without kubelets.
//!
//! A [`Front`] has a namespace, a driver name and nodes of its own, so several run in
//! parallel on one control plane. Its end is part of the test: see [`Front::down`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::PATIENCE;
use crate::memory::{MemoryDriver, Options};
use crate::scratch::Scratch;

pub mod fields;
pub mod objects;
pub mod plane;
pub mod process;
pub mod wait;

use fields::{is_bound, name, text};
use objects::{Objects, Place};
use process::Pod;

/// The content of all secrets of these tests. It must be in no log, event or error.
pub const SECRET: &str = "hush-7be210";

/// The settings of a front.
pub struct FrontSpec {
    name: String,
    options: Options,
    controllers: String,
    args: Vec<String>,
    nodes: usize,
}

impl FrontSpec {
    /// Settings with this name: short, of letters, digits and dashes. The names of all cluster-wide
    /// objects end with it.
    pub fn new(name: &str, controllers: &str) -> FrontSpec {
        FrontSpec {
            name: format!("{name}-{}", std::process::id()),
            options: Options::default(),
            controllers: controllers.to_owned(),
            args: Vec::new(),
            nodes: 1,
        }
    }

    /// Changes the options of the driver.
    #[must_use]
    pub fn driver(mut self, change: impl FnOnce(&mut Options)) -> FrontSpec {
        change(&mut self.options);
        self
    }

    /// Adds arguments of the controllers.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> FrontSpec {
        self.args.extend(args.iter().map(|a| (*a).to_owned()));
        self
    }

    /// Sets the number of nodes with the driver.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> FrontSpec {
        self.nodes = nodes;
        self
    }

    /// Starts the front on this control plane.
    pub async fn up(self, kubeconfig: PathBuf) -> Front {
        let objects = Objects::connect(&kubeconfig).await;
        let scratch = Scratch::new();
        let name = self.name;
        let driver_name = format!("{name}.memory.csi.dev");
        let key = format!("topology.{driver_name}/node");
        let nodes: Vec<_> = (0..self.nodes).map(|i| format!("{name}-n{i}")).collect();
        let segments = |node: &String| BTreeMap::from([(key.clone(), node.clone())]);
        let options = Options {
            name: driver_name.clone(),
            node_id: nodes
                .first()
                .map(|node| objects::id_of(node))
                .unwrap_or_default(),
            other_nodes: nodes
                .iter()
                .skip(1)
                .map(|node| objects::id_of(node))
                .collect(),
            topology: nodes.iter().map(segments).collect(),
            ..self.options
        };
        let topology = options.capabilities.topology();
        let driver = MemoryDriver::start(scratch.path().join("csi.sock"), options);
        let mut args = vec![
            format!("--csi-address={}", driver.endpoint()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--controllers={}", self.controllers),
        ];
        args.extend(self.args);
        let front = Front {
            namespace: name.clone(),
            driver_name,
            key,
            nodes,
            pod: Pod::new(&name, scratch.path().to_owned(), &name, args).without_name(),
            objects,
            driver,
            _scratch: scratch,
            name,
        };
        front.make_surroundings(topology).await;
        front.start_controllers();
        front
    }
}

/// Controllers with their driver.
pub struct Front {
    /// Its own.
    pub name: String,
    /// The namespace of its claims.
    pub namespace: String,
    pub driver_name: String,
    /// The driver's topology key.
    pub key: String,
    /// The nodes with the driver. They have no kubelet.
    pub nodes: Vec<String>,
    /// The objects of the cluster.
    pub objects: Objects,
    pub driver: MemoryDriver,
    pod: Pod,
    _scratch: Scratch,
}

impl Front {
    pub fn start_controllers(&self) {
        self.pod.start();
    }

    /// Sends SIGKILL to the controllers.
    pub fn kill_controllers(&self) {
        self.pod.kill();
    }

    /// The process ID of the controllers. Panics if they do not run.
    pub fn pid(&self) -> u32 {
        self.pod.pid().expect("the controllers run")
    }

    /// The log of the controllers.
    pub fn log(&self) -> String {
        self.pod.log()
    }

    /// Creates the objects of a driver: a namespace, the CSIDriver, nodes with CSINodes, and a
    /// class with the front's name.
    async fn make_surroundings(&self, topology: bool) {
        let driver = &self.driver_name;
        self.objects.namespace(&self.name).await;
        let spec = json!({"attachRequired": true, "podInfoOnMount": false});
        self.objects.create(objects::csi_driver(driver, spec)).await;
        let keys: Vec<_> = topology.then_some(&*self.key).into_iter().collect();
        for node in &self.nodes {
            let labels = json!({&self.key: node, "kubernetes.io/hostname": node});
            self.objects.node(node, labels, driver, &keys).await;
        }
        self.class(&self.name, json!({})).await;
    }

    /// Creates a class of this driver with immediate binding and deletion, with this change.
    pub async fn class(&self, name: &str, change: Value) -> Value {
        let mut class = objects::class(name, &self.driver_name, change);
        class["metadata"]["labels"]["front"] = json!(self.name);
        self.objects.create(class).await
    }

    /// Creates a claim of the front's class for 1 GiB and one writer, with this change.
    pub async fn claim(&self, name: &str, change: Value) -> Value {
        let claim = objects::claim(&self.namespace, name, &self.name, "1Gi", change);
        self.objects.create(claim).await
    }

    /// The reference of a claim.
    pub fn claim_at(&self, name: &str) -> Place {
        self.at("PersistentVolumeClaim", name)
    }

    /// The reference of an object, with the namespace if its kind has one.
    pub fn at(&self, kind: &str, name: &str) -> Place {
        Place::of(kind, &self.namespace, name)
    }

    /// Waits until a claim is bound, and returns it with its volume.
    pub async fn bound(&self, name: &str) -> (Value, Value) {
        let claim = self.until(&self.claim_at(name), "bound", is_bound).await;
        let volume = self.at("PersistentVolume", text(&claim["spec"]["volumeName"]));
        let volume = self.until(&volume, "bound", is_bound).await;
        (claim, volume)
    }

    /// Creates a secret that contains [`SECRET`].
    pub async fn secret(&self, name: &str) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": self.namespace},
            "stringData": {"password": SECRET},
        });
        self.objects.create(secret).await;
    }

    /// Deletes an object and waits until it is gone.
    pub async fn delete(&self, at: Place) {
        self.objects.delete(&at).await;
        self.until_gone(&at).await;
    }

    /// Deletes the remaining claims and snapshots and stops the controllers with SIGTERM. Panics if
    /// anything is left in the driver or in the cluster, a secret was logged, or a request was
    /// forbidden.
    pub async fn down(self) {
        for kind in objects::USERS_KINDS {
            for object in self.objects.list(kind, &self.namespace).await {
                self.delete(self.at(kind, name(&object))).await;
            }
        }
        let nothing = || async {
            let left = self.left_in_cluster().await;
            (left.is_empty() && self.driver.left() == Default::default()).then_some(())
        };
        if wait::until(PATIENCE, nothing).await.is_none() {
            let (cluster, driver) = (self.left_in_cluster().await, self.driver.left());
            panic!("{}: left are {cluster:?} and {driver:?}", self.name);
        }
        println!("{}: calls {:?}", self.name, self.driver.counts());
        self.pod.stop();
        let log = self.log();
        for bad in [SECRET, "panicked", "is forbidden: User"] {
            assert!(
                !log.contains(bad),
                "{}: {bad:?} is in the log:\n{log}",
                self.name
            );
        }
        for event in self.objects.list("Event", &self.namespace).await {
            assert!(
                !event.to_string().contains(SECRET),
                "a secret is in {event}"
            );
        }
        self.remove_surroundings().await;
    }

    /// The cluster-wide objects of this driver.
    async fn left_in_cluster(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (kind, field) in objects::DRIVERS_KINDS {
            for object in self.objects.list(kind, "").await {
                if object
                    .pointer(field)
                    .is_some_and(|v| *v == self.driver_name)
                {
                    left.push(format!("{kind} {}", object["metadata"]["name"]));
                }
            }
        }
        left
    }

    async fn remove_surroundings(&self) {
        for kind in objects::CLASS_KINDS {
            for class in self.objects.list(kind, "").await {
                if class["metadata"]["labels"]["front"] == self.name {
                    self.objects.delete(&self.at(kind, name(&class))).await;
                }
            }
        }
        for node in &self.nodes {
            self.objects.delete(&self.at("CSINode", node)).await;
            self.objects.delete(&self.at("Node", node)).await;
        }
        let driver = self.at("CSIDriver", &self.driver_name);
        self.objects.delete(&driver).await;
        self.objects.delete(&self.at("Namespace", &self.name)).await;
    }
}
