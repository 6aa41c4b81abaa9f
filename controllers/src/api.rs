//! Interprets Kubernetes objects and CSI terms for all controllers. These modules make no calls.

pub use hostloop_api_objects::{claim_fault, constants, duration, pool_fault};
pub use hostloop_report::quantity;

pub(crate) mod attachment;
pub mod boolean;
pub(crate) mod capacity;
pub mod claim_health;
pub(crate) mod hash;
pub mod message;
pub(crate) mod node;
pub(crate) mod node_fitness;
pub(crate) mod node_selector;
pub mod object_name;
pub mod pod;
pub(crate) mod pv;
pub(crate) mod pvc;
pub mod scope;
pub(crate) mod secret_template;
pub(crate) mod topology;
pub(crate) mod volume_mode;
