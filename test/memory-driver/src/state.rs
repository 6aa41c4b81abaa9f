//! The driver's volumes, snapshots and groups, and the effect of each RPC on them.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::node_service_capability::rpc::Type as NodeRpc;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use prost_types::Timestamp;
use tonic::Status;

use crate::options::{Options, Segments};

mod attach;
mod check;
mod expand;
mod groups;
mod health;
mod identity;
mod list;
mod node;
mod snapshots;
mod volumes;

pub(crate) type Answer<R> = Result<R, Status>;

#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    pub id: String,
    /// The name in its CreateVolume request.
    pub name: String,
    /// Its size in bytes.
    pub capacity: i64,
    /// The parameters of its creation.
    pub parameters: BTreeMap<String, String>,
    /// The mutable parameters of its creation or last modification.
    pub mutable: BTreeMap<String, String>,
    /// Its volume context.
    pub context: BTreeMap<String, String>,
    /// The capabilities of its creation.
    pub capabilities: Vec<csi::VolumeCapability>,
    pub source: Option<csi::VolumeContentSource>,
    /// Its topology segments.
    pub place: Segments,
    /// The publications by node ID.
    pub published: BTreeMap<String, Publication>,
    /// The staging paths on the driver's node.
    pub staged: BTreeMap<String, csi::VolumeCapability>,
    /// The target paths on the driver's node; true if read-only.
    pub targets: BTreeMap<String, bool>,
}

/// The publication of a volume to a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Publication {
    /// True if read-only.
    pub readonly: bool,
    /// The capability of the request.
    pub capability: csi::VolumeCapability,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub id: String,
    /// The name in its CreateSnapshot request; empty in a group.
    pub name: String,
    /// The ID of its volume.
    pub source: String,
    /// The size of that volume in bytes.
    pub size: i64,
    /// The time of its creation.
    pub created: Timestamp,
    /// Its topology segments.
    pub place: Segments,
    /// The number of answers that still say it is not ready.
    pub polls_left: u32,
    /// The parameters of its creation.
    pub parameters: BTreeMap<String, String>,
    /// The ID of its group.
    pub group: Option<String>,
}

/// A group snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub id: String,
    /// The name in its CreateVolumeGroupSnapshot request.
    pub name: String,
    /// The time of its creation.
    pub created: Timestamp,
    /// The IDs of its volumes.
    pub sources: BTreeSet<String>,
    /// The IDs of its snapshots.
    pub members: Vec<String>,
    /// The parameters of its creation.
    pub parameters: BTreeMap<String, String>,
    /// The number of answers that still say it is not ready.
    pub polls_left: u32,
}

/// The number of objects of each kind. At the end of a test, all must be 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    pub volumes: usize,
    /// Snapshots, including members of groups.
    pub snapshots: usize,
    /// Group snapshots.
    pub groups: usize,
    /// Publications to nodes.
    pub publications: usize,
    /// Staging paths.
    pub staged: usize,
    /// Target paths.
    pub targets: usize,
}

#[derive(Default)]
pub(crate) struct State {
    pub(super) volumes: BTreeMap<String, Volume>,
    pub(super) snapshots: BTreeMap<String, Snapshot>,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) health: BTreeMap<String, Vec<VolumeHealthEntry>>,
    /// The number in the last ID.
    last: u64,
}

impl State {
    pub(crate) fn left(&self) -> Left {
        let sum = |of: fn(&Volume) -> usize| self.volumes.values().map(of).sum();
        Left {
            volumes: self.volumes.len(),
            snapshots: self.snapshots.len(),
            groups: self.groups.len(),
            publications: sum(|v| v.published.len()),
            staged: sum(|v| v.staged.len()),
            targets: sum(|v| v.targets.len()),
        }
    }

    /// A new ID. IDs sort by their creation.
    fn new_id(&mut self, options: &Options, kind: &str) -> String {
        self.last += 1;
        match options.pool.as_str() {
            "" => format!("{kind}-{:08}", self.last),
            pool => format!("{kind}-{pool}-{:08}", self.last),
        }
    }

    fn volume(&self, id: &str) -> Answer<&Volume> {
        check::given("volume_id", id)?;
        let volume = self.volumes.get(id);
        volume.ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))
    }

    fn volume_mut(&mut self, id: &str) -> Answer<&mut Volume> {
        check::given("volume_id", id)?;
        let volume = self.volumes.get_mut(id);
        volume.ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))
    }
}

fn can(options: &Options, rpc: ControllerRpc) -> Answer<()> {
    if options.capabilities.controller.contains(&rpc) {
        Ok(())
    } else {
        Err(unimplemented(rpc.as_str_name()))
    }
}

fn node_can(options: &Options, rpc: NodeRpc) -> Answer<()> {
    if options.capabilities.node.contains(&rpc) {
        Ok(())
    } else {
        Err(unimplemented(rpc.as_str_name()))
    }
}

fn unimplemented(what: &str) -> Status {
    Status::unimplemented(format!("this driver lacks the capability {what}"))
}
