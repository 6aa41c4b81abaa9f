//! What a check knows about the cluster. [`gather`](super::gather) fills it by requests, and
//! [`decide`](super::decide) judges it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hostloop_api_objects::snapshots::VolumeSnapshotClass;
use hostloop_report::machine::MachineReport;
use hostloop_report::node_faults::NodeFaults;
use hostloop_report::status::PoolReport;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass};
use k8s_openapi::jiff::Timestamp;

use crate::manifests::Version;
use crate::node_pods::NodeReport;
use crate::volume_objects::VolumeObjects;

/// A piece of knowledge, or why it is unknown.
pub(super) type Fact<T> = Result<T, Unknown>;

/// Why something is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unknown {
    /// The person lacks a right; the request, as in "list nodes".
    #[error("you may not {0}")]
    Forbidden(String),
    /// The server does not serve the kind.
    #[error("the server does not serve {0}")]
    NotServed(String),
    /// Something was not asked, because it depends on another fact.
    #[error("{0}")]
    NotAsked(String),
    /// The request failed.
    #[error("{0}")]
    Failed(String),
}

/// All facts. Lists hold the objects as the API server returned them.
pub(super) struct Facts {
    /// The driver's name.
    pub(super) driver: String,
    /// The namespace of hostloop's pods.
    pub(super) namespace: String,
    /// The time by the API server's clock.
    pub(super) now: Timestamp,
    pub(super) server: Fact<Server>,
    pub(super) served: Fact<ServedKinds>,
    pub(super) csi_driver: Fact<Option<CSIDriver>>,
    pub(super) classes: Fact<Vec<StorageClass>>,
    /// The VolumeSnapshotClasses of all drivers.
    pub(super) snapshot_classes: Fact<Vec<VolumeSnapshotClass>>,
    /// hostloop's DaemonSets.
    pub(super) daemon_sets: Fact<Vec<DaemonSet>>,
    /// The Deployments of all namespaces.
    pub(super) deployments: Fact<Vec<Deployment>>,
    /// The pods in hostloop's namespace.
    pub(super) pods: Fact<Vec<Pod>>,
    pub(super) nodes: Fact<Vec<Node>>,
    pub(super) csi_nodes: Fact<Vec<CSINode>>,
    /// The ConfigMap that says which nodes share a kernel.
    pub(super) kernels: Fact<Option<ConfigMap>>,
    /// How often kubelet reports its node's status, by node, of those that share a kernel.
    pub(super) status_periods: BTreeMap<String, Fact<Duration>>,
    /// What the ready pods found on their nodes, by node.
    pub(super) machines: BTreeMap<String, Machine>,
    /// Rights of hostloop's accounts.
    pub(super) rights: Vec<Right>,
    pub(super) policies: Fact<Vec<ValidatingAdmissionPolicy>>,
    pub(super) bindings: Fact<Vec<ValidatingAdmissionPolicyBinding>>,
    /// True if the API server rejects a write that the policies deny.
    pub(super) enforced: Fact<bool>,
    /// The lease of hostloop's leader.
    pub(super) lease: Fact<Option<Lease>>,
    /// The lease that all snapshot controllers share.
    pub(super) snapshot_lease: Fact<Option<Lease>>,
    /// Claims, volumes, snapshots and what belongs to them, in all namespaces.
    pub(super) objects: Fact<VolumeObjects>,
    /// What the ready pods report about the volumes of their nodes.
    pub(super) reports: Vec<NodeReport>,
}

/// The API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// As in `v1.36.0`.
    pub(super) version: String,
    /// 0.0 if it is unreadable.
    pub(super) number: Version,
    /// How far this machine's clock is ahead of the server's, in seconds; negative if it is behind.
    /// `None` if the server does not say its time.
    pub(super) ahead_seconds: Option<i64>,
}

/// The kinds that the API server serves, without the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServedKinds(BTreeMap<(String, String), BTreeSet<String>>);

impl ServedKinds {
    pub(super) fn add(&mut self, group: &str, resource: &str, version: &str) {
        let key = (group.to_owned(), resource.to_owned());
        self.0.entry(key).or_default().insert(version.to_owned());
    }

    /// True if the server serves this version of a resource.
    pub(super) fn has(&self, group: &str, resource: &str, version: &str) -> bool {
        self.versions(group, resource)
            .any(|served| served == version)
    }

    /// The served versions of a resource.
    pub(super) fn versions(&self, group: &str, resource: &str) -> impl Iterator<Item = &str> {
        let key = (group.to_owned(), resource.to_owned());
        self.0.get(&key).into_iter().flatten().map(String::as_str)
    }
}

/// The nodes of each kernel that a ConfigMap names.
pub(super) fn shared_nodes(kernels: &ConfigMap) -> BTreeMap<&str, BTreeSet<&str>> {
    let data = kernels.data.iter().flatten();
    data.map(|(kernel, nodes)| (kernel.as_str(), nodes.split_whitespace().collect()))
        .collect()
}

/// What a node's pod found on its node.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// The pools, as `hostloop status` reports them.
    pub(super) pools: Fact<Vec<PoolReport>>,
    /// The machine, as `hostloop probe machine` reports it.
    pub(super) report: Fact<MachineReport>,
    /// The faults that the node can do, as `hostloop pool-fault list` reports them.
    pub(super) faults: Fact<NodeFaults>,
    /// How far the node's clock is from the API server's, in seconds.
    pub(super) clock: Option<ClockOffset>,
}

/// A difference of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockOffset {
    /// Positive if the node's clock is ahead.
    pub(super) seconds: i64,
    /// By how much the measurement may be wrong.
    pub(super) error: Duration,
}

/// One right of one of hostloop's accounts.
#[derive(Clone, Debug)]
pub(super) struct Right {
    /// The account's name.
    pub(super) account: String,
    /// The right, as in "patch persistentvolumeclaims/status".
    pub(super) what: String,
    /// True if the account has it.
    pub(super) allowed: Fact<bool>,
}
