//! The data of `kubectl hostloop status`, in the form that `-o json` prints. Names and meanings are
//! stable; fields may be added. Sizes are in bytes, times in nanoseconds since the epoch.

use serde::Serialize;

use crate::inspect::status::report::PoolReport;

/// The whole output.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::kubectl) struct ClusterReport {
    /// The node pods, by node.
    pub(in crate::kubectl) nodes: Vec<NodeRow>,
    /// The pools, by node.
    pub(in crate::kubectl) pools: Vec<PoolRow>,
    /// The volumes: first what is stuck, then by namespace and claim.
    pub(in crate::kubectl) volumes: Vec<VolumeRow>,
    /// The snapshots: first what is stuck, then by namespace and name.
    pub(in crate::kubectl) snapshots: Vec<SnapshotRow>,
    /// What is unknown, and which right would show it; a sentence each.
    pub(in crate::kubectl) missing: Vec<String>,
}

/// A node pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::kubectl) struct NodeRow {
    pub(in crate::kubectl) node: String,
    /// The pod of the DaemonSet.
    pub(in crate::kubectl) pod: String,
    /// Why the node does not report.
    pub(in crate::kubectl) problem: Option<String>,
    /// Number of things without an owner on the node; `hostloop fsck` explains them.
    pub(in crate::kubectl) orphans: usize,
}

/// A pool of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::kubectl) struct PoolRow {
    pub(in crate::kubectl) node: String,
    /// What the node reports. The driver's process ID is not visible from here.
    #[serde(flatten)]
    pub(in crate::kubectl) pool: PoolReport,
}

impl AsRef<PoolReport> for PoolRow {
    fn as_ref(&self) -> &PoolReport {
        &self.pool
    }
}

/// How far a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::kubectl) enum State {
    /// The claim has no volume yet.
    #[default]
    Pending,
    /// The claim has a volume that no pod uses.
    Bound,
    /// The volume is mounted at the staging path.
    Staged,
    /// The volume is mounted in a pod.
    Published,
    /// The claim is being deleted.
    Deleting,
    /// The claim's volume does not exist.
    Lost,
    /// The PersistentVolume is not bound to a claim.
    Available,
    /// The claim is deleted, and the volume exists.
    Released,
    /// The volume has neither a claim nor a PersistentVolume.
    Unclaimed,
}

impl State {
    /// The state as kubectl would write it.
    pub(in crate::kubectl) fn as_str(self) -> &'static str {
        match self {
            State::Pending => "Pending",
            State::Bound => "Bound",
            State::Staged => "staged",
            State::Published => "published",
            State::Deleting => "Deleting",
            State::Lost => "Lost",
            State::Available => "Available",
            State::Released => "Released",
            State::Unclaimed => "unclaimed",
        }
    }
}

/// Why something does not go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::kubectl) struct Stuck {
    /// The reason in words: mostly the last warning.
    pub(in crate::kubectl) why: String,
    /// The time of that warning, or since when nothing happens.
    pub(in crate::kubectl) since_ns: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::kubectl) struct VolumeRow {
    /// The claim's or the pod's namespace.
    pub(in crate::kubectl) namespace: Option<String>,
    /// The claim. An inline volume has none.
    pub(in crate::kubectl) claim: Option<String>,
    /// The volume's name in its pod, for an inline volume.
    pub(in crate::kubectl) inline: Option<String>,
    pub(in crate::kubectl) state: State,
    /// Why the volume is stuck.
    pub(in crate::kubectl) stuck: Option<Stuck>,
    /// What explains the state of a volume that is not stuck.
    pub(in crate::kubectl) note: Option<String>,
    pub(in crate::kubectl) node: Option<String>,
    /// The pool on the node.
    pub(in crate::kubectl) pool: Option<String>,
    pub(in crate::kubectl) size_bytes: Option<u64>,
    /// Bytes allocated on disk.
    pub(in crate::kubectl) used_bytes: Option<u64>,
    /// The filesystem, or `raw`.
    pub(in crate::kubectl) filesystem: Option<String>,
    /// The loop devices.
    pub(in crate::kubectl) loops: Vec<String>,
    /// Whether direct I/O is active.
    pub(in crate::kubectl) direct_io: Option<bool>,
    /// The pods that use it.
    pub(in crate::kubectl) pods: Vec<String>,
    /// The PersistentVolume.
    pub(in crate::kubectl) volume: Option<String>,
    /// The volume's ID.
    pub(in crate::kubectl) handle: Option<String>,
    /// The storage class.
    pub(in crate::kubectl) class: Option<String>,
    /// The snapshot or claim that is the content's source.
    pub(in crate::kubectl) source: Option<String>,
    /// When the claim or the volume was created.
    pub(in crate::kubectl) created_ns: u64,
}

impl VolumeRow {
    /// An inline volume as `pod/NAME/VOLUME`; kubelet's handle if the pod is unknown.
    pub(in crate::kubectl) fn inline_name(&self) -> Option<String> {
        let inline = self.inline.as_ref()?;
        Some(match self.pods.first() {
            Some(pod) => format!("pod/{pod}/{inline}"),
            None => inline.clone(),
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::kubectl) struct SnapshotRow {
    pub(in crate::kubectl) namespace: Option<String>,
    /// The VolumeSnapshot.
    pub(in crate::kubectl) name: Option<String>,
    /// Whether volumes can be restored from it; null if unknown.
    pub(in crate::kubectl) ready: Option<bool>,
    /// Why the snapshot is stuck.
    pub(in crate::kubectl) stuck: Option<Stuck>,
    /// The claim, or else the volume's ID.
    pub(in crate::kubectl) source: Option<String>,
    pub(in crate::kubectl) node: Option<String>,
    /// The pool on the node.
    pub(in crate::kubectl) pool: Option<String>,
    /// The minimum size of a restored volume.
    pub(in crate::kubectl) size_bytes: Option<u64>,
    /// Bytes allocated on disk, including blocks shared with others.
    pub(in crate::kubectl) used_bytes: Option<u64>,
    /// The VolumeSnapshotContent.
    pub(in crate::kubectl) content: Option<String>,
    /// The snapshot's ID.
    pub(in crate::kubectl) handle: Option<String>,
    /// The group snapshot.
    pub(in crate::kubectl) group: Option<String>,
    /// When the snapshot was taken or asked for.
    pub(in crate::kubectl) created_ns: u64,
}
