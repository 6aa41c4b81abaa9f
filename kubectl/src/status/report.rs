//! The data of `kubectl hostloop status`, in the form that `-o json` prints. Names and meanings are
//! stable; fields may be added. Sizes are in bytes, times in nanoseconds since the epoch.

use hostloop_report::status::{PoolReport, VolumeFault, VolumeUser, Word};
use serde::Serialize;

use crate::verdict::{Stuck, VolumePhase};

/// The whole output.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ClusterReport {
    /// The node pods, by node.
    pub(crate) nodes: Vec<NodeRow>,
    /// The pools, by node.
    pub(crate) pools: Vec<PoolRow>,
    /// The volumes: first what is stuck, then by namespace and claim.
    pub(crate) volumes: Vec<VolumeRow>,
    /// The snapshots: first what is stuck, then by namespace and name.
    pub(crate) snapshots: Vec<SnapshotRow>,
    /// What is unknown, and which right would show it; a sentence each.
    pub(crate) missing: Vec<String>,
}

impl ClusterReport {
    /// The objects for `-o name`.
    pub(crate) fn objects(&self) -> Vec<String> {
        let volumes = self.volumes.iter().filter_map(VolumeRow::object);
        let snapshots = self.snapshots.iter().filter_map(SnapshotRow::object);
        volumes.chain(snapshots).collect()
    }
}

/// A node pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NodeRow {
    pub(crate) node: String,
    /// The pod of the DaemonSet.
    pub(crate) pod: String,
    /// Why the node does not report.
    pub(crate) problem: Option<String>,
    /// Number of things without an owner on the node; `hostloop fsck` explains them.
    pub(crate) orphans: usize,
}

/// A pool of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PoolRow {
    pub(crate) node: String,
    /// What the node reports. The driver's process ID is not visible from here.
    #[serde(flatten)]
    pub(crate) pool: PoolReport,
}

impl AsRef<PoolReport> for PoolRow {
    fn as_ref(&self) -> &PoolReport {
        &self.pool
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct VolumeRow {
    /// The claim's or the pod's namespace.
    pub(crate) namespace: Option<String>,
    /// The claim. An inline volume has none.
    pub(crate) claim: Option<String>,
    /// The claim's UID. The page finds the claim by it.
    #[serde(skip)]
    pub(crate) claim_uid: Option<String>,
    /// The volume's name in its pod, for an inline volume.
    pub(crate) inline: Option<String>,
    pub(crate) state: VolumePhase,
    /// Why the volume is stuck.
    pub(crate) stuck: Option<Stuck>,
    /// What explains the state of a volume that is not stuck.
    pub(crate) note: Option<String>,
    /// The node with the volume's pool.
    pub(crate) node: Option<String>,
    /// `kernel` if all nodes that share a kernel with that node can use the volume; null if unknown.
    pub(crate) reach: Option<Word>,
    /// The nodes that use such a volume.
    pub(crate) users: Vec<VolumeUser>,
    /// The pool on the node.
    pub(crate) pool: Option<String>,
    pub(crate) size_bytes: Option<u64>,
    /// Bytes allocated on disk.
    pub(crate) used_bytes: Option<u64>,
    /// The filesystem, or `raw`.
    pub(crate) filesystem: Option<String>,
    /// The loop devices.
    pub(crate) loops: Vec<String>,
    /// Whether direct I/O is active.
    pub(crate) direct_io: Option<bool>,
    /// The fault that the claim asks for.
    pub(crate) fault: Option<VolumeFault>,
    /// The pods that use it.
    pub(crate) pods: Vec<String>,
    /// The PersistentVolume.
    pub(crate) volume: Option<String>,
    /// The volume's ID.
    pub(crate) handle: Option<String>,
    /// The storage class.
    pub(crate) class: Option<String>,
    /// The snapshot or claim that is the content's source.
    pub(crate) source: Option<String>,
    /// When the claim or the volume was created.
    pub(crate) created_ns: u64,
}

impl VolumeRow {
    /// The state in a word, or more if the volume is stuck or has a fault.
    pub(crate) fn state_words(&self) -> String {
        let words = match (&self.stuck, self.state) {
            (Some(_), VolumePhase::Pending | VolumePhase::Lost) => "stuck".to_owned(),
            (Some(_), state) => format!("{}, stuck", state.as_str()),
            (None, state) => state.as_str().to_owned(),
        };
        match self.fault_mark() {
            Some(mark) => format!("{words}, {mark}"),
            None => words,
        }
    }

    /// The nodes that use a volume that several can use.
    pub(crate) fn user_words(&self) -> String {
        let users = self.users.iter().map(VolumeUser::words);
        users.collect::<Vec<_>>().join(",")
    }

    /// The mark of its fault, if the volume can't be used as usual.
    pub(crate) fn fault_mark(&self) -> Option<String> {
        self.fault.as_ref().and_then(VolumeFault::mark)
    }

    /// The object for `-o name`: the claim, the pod of an inline volume, or the PersistentVolume.
    pub(crate) fn object(&self) -> Option<String> {
        match (&self.claim, self.inline_name(), &self.volume) {
            (Some(claim), _, _) => Some(format!("persistentvolumeclaim/{claim}")),
            (None, Some(inline), _) => Some(inline),
            (None, None, volume) => volume
                .as_ref()
                .map(|volume| format!("persistentvolume/{volume}")),
        }
    }

    /// An inline volume as `pod/NAME/VOLUME`; kubelet's handle if the pod is unknown.
    pub(crate) fn inline_name(&self) -> Option<String> {
        let inline = self.inline.as_ref()?;
        Some(match self.pods.first() {
            Some(pod) => format!("pod/{pod}/{inline}"),
            None => inline.clone(),
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct SnapshotRow {
    pub(crate) namespace: Option<String>,
    /// The VolumeSnapshot.
    pub(crate) name: Option<String>,
    /// Its UID. The page finds it by that.
    #[serde(skip)]
    pub(crate) uid: Option<String>,
    /// Whether the VolumeSnapshot is being deleted.
    pub(crate) deleting: bool,
    /// Whether volumes can be restored from it; null if unknown.
    pub(crate) ready: Option<bool>,
    /// Why the snapshot is stuck.
    pub(crate) stuck: Option<Stuck>,
    /// The claim, or else the volume's ID.
    pub(crate) source: Option<String>,
    pub(crate) node: Option<String>,
    /// The pool on the node.
    pub(crate) pool: Option<String>,
    /// The minimum size of a restored volume.
    pub(crate) size_bytes: Option<u64>,
    /// Bytes allocated on disk, including blocks shared with others.
    pub(crate) used_bytes: Option<u64>,
    /// The VolumeSnapshotContent.
    pub(crate) content: Option<String>,
    /// The snapshot's ID.
    pub(crate) handle: Option<String>,
    /// The group snapshot.
    pub(crate) group: Option<String>,
    /// `frozen` or `powercut`; null if unknown.
    pub(crate) consistency: Option<Word>,
    /// When the snapshot was taken or asked for.
    pub(crate) created_ns: u64,
}

impl SnapshotRow {
    /// The object for `-o name`, if there is one.
    pub(crate) fn object(&self) -> Option<String> {
        let name = self.name.as_ref()?;
        Some(format!("volumesnapshot.snapshot.storage.k8s.io/{name}"))
    }

    /// True if the snapshot shows what a power cut would have left.
    pub(crate) fn is_powercut(&self) -> bool {
        self.consistency.as_deref() == Some("powercut")
    }

    /// The state in a word.
    pub(crate) fn state_words(&self) -> &'static str {
        match (&self.stuck, &self.name, self.ready) {
            (Some(_), _, _) => "stuck",
            (None, _, _) if self.deleting => "Deleting",
            (None, _, Some(true)) if self.is_powercut() => "ready, power cut",
            (None, _, Some(true)) => "ready",
            (None, None, None) => "unclaimed",
            (None, _, _) => "being taken",
        }
    }
}
