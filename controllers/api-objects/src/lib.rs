//! Objects of a cluster as the controllers write them and the client reads them: kinds, names, labels
//! and the forms of values. Nothing here makes a call.

pub mod claim_fault;
pub mod constants;
pub mod duration;
pub mod labels;
pub mod lease_name;
pub mod pool_fault;
pub mod shared_volumes;
pub mod snapshot_crds;
pub mod snapshot_metadata;
pub mod snapshots;
