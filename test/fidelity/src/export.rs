//! A history of the simulator, as a real cluster can repeat it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ClusterState;

/// What users did in a simulated cluster, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// The seed of the history.
    pub seed: u64,
    /// What an administrator has made before: the users' namespace, and classes.
    pub setup: Vec<Value>,
    pub steps: Vec<ReplayedStep>,
}

/// One thing that a user did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayedStep {
    /// What the user did, for people.
    pub sentence: String,
    /// The writes, in their order.
    pub calls: Vec<Call>,
    /// What the cluster has after a quiet time.
    pub state: ClusterState,
}

/// A write to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub method: String,
    /// The path of the request. An object that a program has named has its readable name there, see
    /// [`Names`](crate::Names).
    pub path: String,
    pub body: Value,
    /// The HTTP status of the answer.
    pub code: u16,
}
