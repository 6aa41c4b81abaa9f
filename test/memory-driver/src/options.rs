//! The driver's capabilities and behaviour.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::group_controller_service_capability::rpc::Type as GroupRpc;
use hostloop_proto::csi::node_service_capability::rpc::Type as NodeRpc;
use hostloop_proto::csi::plugin_capability::service::Type as Service;
use hostloop_proto::csi::plugin_capability::volume_expansion::Type as Expansion;

/// Topology segments: keys and values.
pub type Segments = BTreeMap<String, String>;

/// The capabilities of the driver. An RPC without its capability returns UNIMPLEMENTED.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The services and constraints of the plugin.
    pub services: BTreeSet<Service>,
    /// The kind of volume expansion. `None` refuses expansion.
    pub expansion: Option<Expansion>,
    /// The capabilities of the Controller service.
    pub controller: BTreeSet<ControllerRpc>,
    /// The capabilities of the GroupController service.
    pub group: BTreeSet<GroupRpc>,
    /// The capabilities of the Node service.
    pub node: BTreeSet<NodeRpc>,
}

impl Capabilities {
    /// All capabilities, except topology of snapshots: csi-sanity compares it in a way that no
    /// answer satisfies.
    pub fn all() -> Capabilities {
        Capabilities {
            services: [
                Service::ControllerService,
                Service::GroupControllerService,
                Service::VolumeAccessibilityConstraints,
            ]
            .into(),
            expansion: Some(Expansion::Online),
            controller: known(ControllerRpc::try_from),
            group: [GroupRpc::CreateDeleteGetVolumeGroupSnapshot].into(),
            node: known(NodeRpc::try_from),
        }
    }

    /// True if volumes have topology.
    pub fn topology(&self) -> bool {
        let topology = Service::VolumeAccessibilityConstraints;
        self.services.contains(&topology)
    }
}

/// All values of an enumeration, except its zero, which means unknown.
fn known<T: Ord, E>(value: impl Fn(i32) -> Result<T, E>) -> BTreeSet<T> {
    (1..64).filter_map(|number| value(number).ok()).collect()
}

/// Sizes are rounded up to a multiple of this.
pub(crate) const GRANULARITY: i64 = 1 << 20;

/// The size of volumes without a requested size.
pub(crate) const DEFAULT_SIZE: i64 = 1 << 30;

/// The driver's behaviour.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name in GetPluginInfo.
    pub name: String,
    pub node_id: String,
    /// A part of all IDs, so that those of two drivers differ; none if empty.
    pub pool: String,
    /// IDs of further nodes that volumes can be published to.
    pub other_nodes: BTreeSet<String>,
    pub capabilities: Capabilities,
    /// The segments with storage, those of its own node first.
    pub topology: Vec<Segments>,
    /// The capacity of each of these segments in bytes.
    pub capacity: i64,
    /// The largest volume in bytes; 0 means no limit.
    pub max_volume_size: i64,
    /// The number of volumes that can be published to a node; 0 means no limit.
    pub attach_limit: i64,
    /// The accepted parameters; `None` accepts all.
    pub known_parameters: Option<BTreeSet<String>>,
    /// The accepted mutable parameters; `None` accepts all.
    pub known_mutable: Option<BTreeSet<String>>,
    /// True if NodeExpandVolume must follow an expansion.
    pub node_expansion_required: bool,
    /// The number of answers that say that a new snapshot or group is not ready.
    pub ready_after_polls: u32,
    /// A wrong capacity that CreateVolume returns instead of the real one.
    pub claims_capacity: Option<i64>,
    /// CreateVolume omits the content source.
    pub forgets_source: bool,
}

impl Default for Options {
    fn default() -> Options {
        let key = "topology.memory.csi.dev/node";
        Options {
            name: "memory.csi.dev".to_owned(),
            node_id: "memory-node".to_owned(),
            pool: String::new(),
            other_nodes: BTreeSet::new(),
            capabilities: Capabilities::all(),
            topology: vec![[(key.to_owned(), "memory-node".to_owned())].into()],
            capacity: 1 << 40,
            max_volume_size: 0,
            attach_limit: 0,
            known_parameters: None,
            known_mutable: None,
            node_expansion_required: false,
            ready_after_polls: 0,
            claims_capacity: None,
            forgets_source: false,
        }
    }
}

impl Options {
    /// True if volumes can be published to this node.
    pub fn knows_node(&self, node: &str) -> bool {
        self.node_id == node || self.other_nodes.contains(node)
    }
}
