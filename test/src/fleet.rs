//! Many nodes on one machine. Each has a process with the controllers, as in a DaemonSet, in front
//! of its own in-memory driver, and a Node and a CSINode without a kubelet.
//!
//! [`storm`] creates claims and acts as the scheduler; [`ends`] checks the results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::cluster::account;
use crate::deployed;
use crate::front::objects::{self, Objects, Place};
use crate::front::process::Pod;
use crate::machine::own_address;
use crate::memory::{MemoryDriver, Options};
use crate::scratch::Scratch;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;

pub mod ends;
mod heart;
mod member;
pub mod patience;
pub mod proxy;
pub mod storm;

pub use member::Member;

/// The storage capacity of each node, in bytes.
const CAPACITY: i64 = 1 << 40;

/// The controllers of a DaemonSet's pod, except those that only a kubelet calls.
const CONTROLLERS: &str = "*,-liveness,-registrar";

/// The name of a pod's kubeconfig, in the pod's directory, if the pod has a deployed account.
const KUBECONFIG: &str = "kubeconfig";

/// The settings of a fleet.
pub struct FleetSpec {
    name: String,
    size: usize,
    args: Vec<String>,
    attach: bool,
    leader_apart: bool,
    deployed: bool,
    kubeconfigs: Vec<PathBuf>,
}

impl FleetSpec {
    /// A fleet with this name and number of nodes.
    pub fn new(name: &str, size: usize) -> FleetSpec {
        FleetSpec {
            name: format!("{name}-{}", std::process::id()),
            size,
            args: Vec::new(),
            attach: false,
            leader_apart: false,
            deployed: false,
            kubeconfigs: Vec::new(),
        }
    }

    /// Adds arguments of the controllers.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> FleetSpec {
        self.args.extend(args.iter().map(|a| (*a).to_owned()));
        self
    }

    /// Sets whether the driver requires attachment.
    #[must_use]
    pub fn attach(mut self, attach: bool) -> FleetSpec {
        self.attach = attach;
        self
    }

    /// Runs the cluster-wide tasks in a separate pod without a driver.
    #[must_use]
    pub fn leader_apart(mut self) -> FleetSpec {
        self.leader_apart = true;
        self
    }

    /// Runs the controllers under the driver's name, namespace and accounts of the manifest, which
    /// the cluster has: see [`deployed::without_pods`]. The pod of the cluster-wide tasks is
    /// separate.
    #[must_use]
    pub fn deployed(self) -> FleetSpec {
        FleetSpec {
            deployed: true,
            ..self.leader_apart()
        }
    }

    /// Kubeconfigs for the controllers, assigned round-robin to the nodes and then to the pod of
    /// the cluster-wide tasks. By default they use the fleet's own.
    #[must_use]
    pub fn kubeconfigs(mut self, files: Vec<PathBuf>) -> FleetSpec {
        self.kubeconfigs = files;
        self
    }

    /// Creates the fleet's objects and drivers on this control plane. No controllers run yet.
    pub async fn up(self, kubeconfig: &Path) -> Fleet {
        let scratch = Scratch::new();
        let client = objects::client(kubeconfig).await;
        let (driver_name, namespace) = if self.deployed {
            (deployed::DRIVER.to_owned(), deployed::NAMESPACE.to_owned())
        } else {
            (format!("{}.memory.csi.dev", self.name), self.name.clone())
        };
        let key = format!("topology.{driver_name}/node");
        let kubeconfigs = if self.kubeconfigs.is_empty() {
            vec![kubeconfig.to_owned()]
        } else {
            self.kubeconfigs.clone()
        };
        let kubeconfig_of = |number: usize, dir: &Path| {
            if self.deployed {
                dir.join(KUBECONFIG)
            } else {
                kubeconfigs[number % kubeconfigs.len()].clone()
            }
        };
        let members = (0..self.size).map(|number| {
            let node = format!("{}-n{number}", self.name);
            let dir = scratch.dir(&node);
            let options = self.driver(&driver_name, &key, number, &node);
            let driver = MemoryDriver::start(dir.join("csi.sock"), options);
            let mut args = vec![
                format!("--csi-address={}", driver.endpoint()),
                format!("--kubeconfig={}", kubeconfig_of(number, &dir).display()),
                format!("--controllers={CONTROLLERS}"),
                format!("--node-name={node}"),
                format!("--http-endpoint={}", own_address()),
                "--node-deployment=true".to_owned(),
                "--capacity-ownerref-level=-1".to_owned(),
            ];
            if self.leader_apart {
                args.push("--leader-tasks=elsewhere".to_owned());
            }
            if self.deployed {
                args.push("--volume-name-prefix=hostloop".to_owned());
            }
            args.extend(self.args.iter().cloned());
            let pod = Pod::new(&node, dir, &namespace, args);
            Member { node, driver, pod }
        });
        let members = members.collect();
        let controller = self.leader_apart.then(|| {
            let name = format!("{}-controller", self.name);
            let dir = scratch.dir(&name);
            let mut args = vec![
                "--leader-tasks=only".to_owned(),
                format!("--drivername={driver_name}"),
                format!("--kubeconfig={}", kubeconfig_of(self.size, &dir).display()),
                format!("--controllers={CONTROLLERS},snapshot-controller"),
                format!("--http-endpoint={}", own_address()),
            ];
            args.extend(self.args.iter().cloned());
            Pod::new(&name, dir, &namespace, args)
        });
        let fleet = Fleet {
            members,
            controller,
            objects: Objects::connect(kubeconfig).await,
            claims: Api::namespaced(client.clone(), &self.name),
            volumes: Api::all(client.clone()),
            namespace,
            name: self.name,
            driver_name,
            key,
            attach: self.attach,
            deployed: self.deployed,
            heart: None,
            client,
            scratch,
        };
        let fleet = fleet.surrounded().await;
        if fleet.deployed {
            fleet.write_kubeconfigs(kubeconfig).await;
        }
        fleet
    }

    fn driver(&self, name: &str, key: &str, number: usize, node: &str) -> Options {
        let mut options = Options {
            name: name.to_owned(),
            node_id: objects::id_of(node),
            pool: format!("n{number}"),
            topology: vec![BTreeMap::from([(key.to_owned(), node.to_owned())])],
            capacity: CAPACITY,
            ..Options::default()
        };
        if !self.attach {
            let rpcs = &mut options.capabilities.controller;
            rpcs.remove(&ControllerRpc::PublishUnpublishVolume);
            rpcs.remove(&ControllerRpc::ListVolumesPublishedNodes);
        }
        options
    }
}

/// Nodes with controllers. Dropping the fleet kills the controllers; [`Fleet::down`] removes
/// everything.
pub struct Fleet {
    /// The name of the fleet and of its claims' namespace.
    pub name: String,
    /// The namespace of the fleet's pods.
    pub namespace: String,
    /// The CSI name of the fleet's drivers.
    pub driver_name: String,
    /// The drivers' topology key.
    pub key: String,
    /// The nodes.
    pub members: Vec<Member>,
    /// The pod of the cluster-wide tasks, if it is separate.
    pub controller: Option<Pod>,
    /// The objects of the cluster.
    pub objects: Objects,
    /// The fleet's claims.
    pub claims: Api<PersistentVolumeClaim>,
    /// The cluster's volumes.
    pub volumes: Api<PersistentVolume>,
    attach: bool,
    deployed: bool,
    client: Client,
    heart: Option<JoinHandle<()>>,
    scratch: Scratch,
}

/// The volume binding mode of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The scheduler chooses it.
    Wait,
    /// The controllers choose it.
    Immediate,
}

impl Binding {
    /// Both modes.
    pub const ALL: [Binding; 2] = [Binding::Wait, Binding::Immediate];

    /// The mode's name in the API.
    pub fn mode(self) -> &'static str {
        match self {
            Binding::Wait => "WaitForFirstConsumer",
            Binding::Immediate => "Immediate",
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Binding::Wait => "wait",
            Binding::Immediate => "now",
        }
    }
}

impl Fleet {
    /// A client for the administrator.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The name of the class with this binding mode.
    pub fn class(&self, binding: Binding) -> String {
        format!("{}-{}", self.name, binding.suffix())
    }

    /// Starts all controllers, with this delay between two nodes.
    pub async fn start(&self, apart: Duration) {
        for member in &self.members {
            member.start();
            tokio::time::sleep(apart).await;
        }
    }

    /// Waits until every node has published its capacity: then all of its controllers work.
    pub async fn ready(&self, limit: Duration) {
        let published = async || {
            self.assert_running();
            let objects = self
                .objects
                .list("CSIStorageCapacity", &self.namespace)
                .await;
            let class = self.class(Binding::Wait);
            let of_class = objects.iter().filter(|o| o["storageClassName"] == class);
            let nodes: std::collections::BTreeSet<_> = of_class
                .map(|o| o["nodeTopology"]["matchLabels"][&self.key].to_string())
                .collect();
            if nodes.len() == self.members.len() {
                Ok(())
            } else {
                Err(format!(
                    "{} of {} published",
                    nodes.len(),
                    self.members.len()
                ))
            }
        };
        let what = format!("{}: the room of each node", self.name);
        crate::cluster::wait_for(&what, limit, published).await;
    }

    /// Panics if a controllers process has ended unexpectedly.
    pub fn assert_running(&self) {
        self.members
            .iter()
            .for_each(|member| member.assert_running());
        self.controller.iter().for_each(Pod::assert_running);
    }

    /// The node with the leading controllers.
    pub async fn leader(&self) -> Option<&Member> {
        let lease = self.objects.get(&self.lease()).await?;
        let holder = lease["spec"]["holderIdentity"].as_str()?;
        self.members.iter().find(|member| member.node == holder)
    }

    /// The leader's lease.
    pub fn lease(&self) -> Place {
        // As the controllers convert a driver's name.
        let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let driver: String = self.driver_name.chars().map(keep).collect();
        Place::of("Lease", &self.namespace, &format!("hostloop-{driver}"))
    }

    async fn surrounded(mut self) -> Fleet {
        self.objects.namespace(&self.name).await;
        if !self.deployed {
            let spec = json!({
                "attachRequired": self.attach, "podInfoOnMount": false, "storageCapacity": true,
            });
            self.objects
                .create(objects::csi_driver(&self.driver_name, spec))
                .await;
        }
        for binding in Binding::ALL {
            let mode = json!({"volumeBindingMode": binding.mode()});
            let class = objects::class(&self.class(binding), &self.driver_name, mode);
            self.objects.create(class).await;
        }
        futures::future::join_all(self.members.iter().map(|member| self.node(member))).await;
        let nodes = self.members.iter().map(|m| m.node.clone()).collect();
        self.heart = Some(tokio::spawn(heart::beat(self.client.clone(), nodes)));
        self
    }

    /// Writes the kubeconfigs of the deployed accounts. A node's token is bound to a pod on the
    /// node.
    async fn write_kubeconfigs(&self, admin: &Path) {
        for member in &self.members {
            let node = &member.node;
            account::node_pod(&self.client, deployed::NAMESPACE, node, node).await;
            let token = self.token("hostloop", Some(node)).await;
            self.write_kubeconfig(admin, &token, node);
        }
        if let Some(controller) = &self.controller {
            let token = self.token("hostloop-controller", None).await;
            self.write_kubeconfig(admin, &token, controller.name());
        }
    }

    async fn token(&self, account: &str, pod: Option<&str>) -> String {
        account::token(&self.client, deployed::NAMESPACE, account, pod).await
    }

    fn write_kubeconfig(&self, admin: &Path, token: &str, pod: &str) {
        let file = self.scratch.path().join(pod).join(KUBECONFIG);
        account::write_kubeconfig(admin, token, &file);
    }

    async fn node(&self, member: &Member) {
        let node = &member.node;
        let labels =
            json!({&self.key: node, "kubernetes.io/hostname": node, heart::LABEL: self.name});
        self.objects
            .node(node, labels, &self.driver_name, &[&self.key])
            .await;
        heart::ready(&self.client, node).await;
    }

    /// Stops the controllers, which must end with success, and removes the objects made for them.
    /// Claims and volumes must be gone already. The objects of the manifest stay.
    pub async fn down(mut self) {
        let nodes: Vec<_> = self.members.iter().map(|m| m.node.clone()).collect();
        let members = std::mem::take(&mut self.members).into_iter();
        // Each driver serves until its controllers have stopped.
        let (pods, drivers): (Vec<_>, Vec<_>) = members.map(|m| (m.pod, m.driver)).unzip();
        let pods: Vec<_> = pods.into_iter().chain(self.controller.take()).collect();
        for pod in &pods {
            let (log, name) = (pod.log(), pod.name());
            assert!(!log.contains("panicked"), "{name} panicked:\n{log}");
            // A restarted API server may refuse what its roles allow. Tests restart only that of
            // other fleets.
            let lacks_right = self.deployed && log.contains("is forbidden");
            assert!(!lacks_right, "{name} lacks a right:\n{log}");
        }
        let stopped = tokio::task::spawn_blocking(move || {
            pods.iter().for_each(Pod::ask_to_stop);
            pods.iter().for_each(Pod::stopped);
            drop(drivers);
        });
        stopped.await.expect("all controllers end well");
        for node in &nodes {
            for kind in ["CSINode", "Node"] {
                self.objects.delete(&Place::of(kind, "", node)).await;
            }
            let lease = Place::of("Lease", heart::NAMESPACE, node);
            self.objects.delete(&lease).await;
        }
        let classes = Binding::ALL.map(|binding| ("StorageClass", self.class(binding)));
        let driver = (!self.deployed).then(|| ("CSIDriver", self.driver_name.clone()));
        let namespace = ("Namespace", self.name.clone());
        for (kind, name) in classes.into_iter().chain(driver).chain([namespace]) {
            self.objects.delete(&Place::of(kind, "", &name)).await;
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(heart) = &self.heart {
            heart.abort();
        }
    }
}
