//! What the driver keeps, and how it answers each call from that.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::node_service_capability::rpc::Type as NodeRpc;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use prost_types::Timestamp;
use tonic::Status;

use super::options::{Options, Segments};

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

pub(super) type Answer<R> = Result<R, Status>;

/// A volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// The ID it got.
    pub id: String,
    /// The name it was asked for by.
    pub name: String,
    /// Its size in bytes.
    pub capacity: i64,
    /// What it was made with.
    pub parameters: BTreeMap<String, String>,
    /// What it was made with, or was modified to.
    pub mutable: BTreeMap<String, String>,
    /// What its context says.
    pub context: BTreeMap<String, String>,
    /// How it can be used.
    pub capabilities: Vec<csi::VolumeCapability>,
    /// What it was made from.
    pub source: Option<csi::VolumeContentSource>,
    /// Where it is.
    pub place: Segments,
    /// The nodes it is published at.
    pub published: BTreeMap<String, Publication>,
    /// The paths it is staged at, on the driver's own node.
    pub staged: BTreeMap<String, csi::VolumeCapability>,
    /// The paths it is published at, on the driver's own node, and whether read-only.
    pub targets: BTreeMap<String, bool>,
}

/// How a volume is published at a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Publication {
    /// Read-only.
    pub readonly: bool,
    /// With this capability.
    pub capability: csi::VolumeCapability,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The ID it got.
    pub id: String,
    /// The name it was asked for by; none in a group.
    pub name: String,
    /// The volume it is of.
    pub source: String,
    /// The size of that.
    pub size: i64,
    /// When it was taken.
    pub created: Timestamp,
    /// Where it is.
    pub place: Segments,
    /// How often it will be seen unready.
    pub polls_left: u32,
    /// What it was made with.
    pub parameters: BTreeMap<String, String>,
    /// The group it belongs to.
    pub group: Option<String>,
}

/// A group snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The ID it got.
    pub id: String,
    /// The name it was asked for by.
    pub name: String,
    /// When it was taken.
    pub created: Timestamp,
    /// The volumes it is of.
    pub sources: BTreeSet<String>,
    /// Its snapshots.
    pub members: Vec<String>,
    /// What it was made with.
    pub parameters: BTreeMap<String, String>,
    /// How often it will be seen unready.
    pub polls_left: u32,
}

/// How much there is of everything that somebody must have given back in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Volumes.
    pub volumes: usize,
    /// Snapshots, members of groups among them.
    pub snapshots: usize,
    /// Group snapshots.
    pub groups: usize,
    /// Volumes at nodes.
    pub publications: usize,
    /// Volumes at staging paths.
    pub staged: usize,
    /// Volumes at target paths.
    pub targets: usize,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) volumes: BTreeMap<String, Volume>,
    pub(super) snapshots: BTreeMap<String, Snapshot>,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) health: BTreeMap<String, Vec<VolumeHealthEntry>>,
    /// Of the IDs so far.
    last: u64,
}

impl State {
    pub(super) fn left(&self) -> Left {
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

    /// An ID that was not used before. IDs sort in the order they were made.
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
        volume.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))
    }

    fn volume_mut(&mut self, id: &str) -> Answer<&mut Volume> {
        check::given("volume_id", id)?;
        let volume = self.volumes.get_mut(id);
        volume.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))
    }
}

fn can(options: &Options, rpc: ControllerRpc) -> Answer<()> {
    match options.capabilities.controller.contains(&rpc) {
        true => Ok(()),
        false => Err(unimplemented(rpc.as_str_name())),
    }
}

fn node_can(options: &Options, rpc: NodeRpc) -> Answer<()> {
    match options.capabilities.node.contains(&rpc) {
        true => Ok(()),
        false => Err(unimplemented(rpc.as_str_name())),
    }
}

fn unimplemented(what: &str) -> Status {
    Status::unimplemented(format!("this driver does not have {what}"))
}
