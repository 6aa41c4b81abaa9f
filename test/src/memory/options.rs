//! What the driver is capable of, and how it behaves.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::group_controller_service_capability::rpc::Type as GroupRpc;
use hostloop_proto::csi::node_service_capability::rpc::Type as NodeRpc;
use hostloop_proto::csi::plugin_capability::service::Type as Service;
use hostloop_proto::csi::plugin_capability::volume_expansion::Type as Expansion;

/// A place volumes can be reached from: topology keys and their values.
pub type Segments = BTreeMap<String, String>;

/// The capabilities of the driver. A call without its capability gets UNIMPLEMENTED.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Of the plugin: its services and constraints.
    pub services: BTreeSet<Service>,
    /// When volumes can be expanded, if at all.
    pub expansion: Option<Expansion>,
    /// Of the Controller service.
    pub controller: BTreeSet<ControllerRpc>,
    /// Of the GroupController service.
    pub group: BTreeSet<GroupRpc>,
    /// Of the Node service.
    pub node: BTreeSet<NodeRpc>,
}

impl Capabilities {
    /// All the protocol knows that the driver serves, but snapshots with a place: what would read
    /// that compares it in a way that no answer satisfies.
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

    /// Nothing but making and deleting volumes.
    pub fn least() -> Capabilities {
        Capabilities {
            services: [Service::ControllerService].into(),
            expansion: None,
            controller: [ControllerRpc::CreateDeleteVolume].into(),
            group: BTreeSet::new(),
            node: BTreeSet::new(),
        }
    }

    /// Without one of the Controller service.
    #[must_use]
    pub fn without(mut self, rpc: ControllerRpc) -> Capabilities {
        self.controller.remove(&rpc);
        self
    }

    /// With one of the Controller service.
    #[must_use]
    pub fn with(mut self, rpc: ControllerRpc) -> Capabilities {
        self.controller.insert(rpc);
        self
    }

    /// Without topology.
    #[must_use]
    pub fn without_topology(mut self) -> Capabilities {
        let topology = Service::VolumeAccessibilityConstraints;
        self.services.remove(&topology);
        self
    }

    /// Whether volumes have a place.
    pub fn topology(&self) -> bool {
        let topology = Service::VolumeAccessibilityConstraints;
        self.services.contains(&topology)
    }
}

/// All values of an enumeration but its zero, which is unknown.
fn known<T: Ord, E>(value: impl Fn(i32) -> Result<T, E>) -> BTreeSet<T> {
    (1..64).filter_map(|number| value(number).ok()).collect()
}

/// How the driver behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it calls itself.
    pub name: String,
    /// The node it says it runs on.
    pub node_id: String,
    /// What its IDs carry, so that those of two drivers differ; nothing if empty.
    pub pool: String,
    /// Other nodes it knows, to publish volumes at.
    pub other_nodes: BTreeSet<String>,
    /// What Probe says; nothing counts as ready.
    pub ready: Option<bool>,
    /// What it can.
    pub capabilities: Capabilities,
    /// The places it has storage in, its own node's first.
    pub topology: Vec<Segments>,
    /// Bytes it has, in each place.
    pub capacity: i64,
    /// The largest volume; 0 is no limit.
    pub max_volume_size: i64,
    /// Sizes are rounded up to a multiple of this.
    pub granularity: i64,
    /// The size of volumes without a requested size.
    pub default_size: i64,
    /// Volumes a node can have published; 0 is no limit.
    pub attach_limit: i64,
    /// Parameters it takes, if not all.
    pub known_parameters: Option<BTreeSet<String>>,
    /// Mutable parameters it takes, if not all.
    pub known_mutable: Option<BTreeSet<String>>,
    /// A secret that CreateVolume must come with, and its value.
    pub required_secret: Option<(String, String)>,
    /// What a volume's context says.
    pub volume_context: BTreeMap<String, String>,
    /// Whether the node has to do something about an expanded volume.
    pub node_expansion_required: bool,
    /// A snapshot, or group of them, is ready after it has been asked for so many times.
    pub ready_after_polls: u32,
    /// Says that a new volume has this capacity, whatever it has.
    pub claims_capacity: Option<i64>,
    /// Forgets to say what a volume was made from.
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
            ready: Some(true),
            capabilities: Capabilities::all(),
            topology: vec![[(key.to_owned(), "memory-node".to_owned())].into()],
            capacity: 1 << 40,
            max_volume_size: 0,
            granularity: 1 << 20,
            default_size: 1 << 30,
            attach_limit: 0,
            known_parameters: None,
            known_mutable: None,
            required_secret: None,
            volume_context: [("kept".to_owned(), "in-memory".to_owned())].into(),
            node_expansion_required: false,
            ready_after_polls: 0,
            claims_capacity: None,
            forgets_source: false,
        }
    }
}

impl Options {
    /// Whether volumes can be published at this node.
    pub fn knows_node(&self, node: &str) -> bool {
        self.node_id == node || self.other_nodes.contains(node)
    }
}
