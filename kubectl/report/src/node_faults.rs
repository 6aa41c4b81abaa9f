//! The output of `hostloop pool-fault`: the faults that a node can do, and those that its pools have.

use serde::{Deserialize, Serialize};

/// What the driver of a node says about faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFaults {
    /// True if the driver runs with `--enable-faults`.
    pub enabled: bool,
    /// The faults that claims may ask for.
    pub claims: Vec<OfferedFault>,
    /// The faults that only claims with a volume on a fault disk may ask for. The command asks the
    /// server of these disks, so the driver's own file has none.
    #[serde(default)]
    pub fault_disks: Vec<OfferedFault>,
    /// The volumes with a fault disk that is served now, by their handles; null if that is not known.
    #[serde(default)]
    pub served_disks: Option<Vec<String>>,
    /// The configured pools, in order.
    pub pools: Vec<PoolWithFaults>,
}

/// A fault, and whether the node can do it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedFault {
    /// Its word, such as `gone`.
    pub fault: String,
    /// Why the node can't do it; null if it can.
    pub obstacle: Option<String>,
}

/// The faults of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolWithFaults {
    /// The pool's name.
    pub pool: String,
    /// The faults that it may have.
    pub faults: Vec<OfferedFault>,
    /// The fault that was asked for last, until it is cleared.
    pub now: Option<PoolFaultNow>,
}

/// A fault of a pool, and what has become of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFaultNow {
    /// The fault, as it was asked for.
    pub fault: String,
    /// When it was asked for, nanoseconds since the epoch. Tells repetitions apart.
    pub requested_ns: u64,
    pub state: PoolFaultState,
    /// A sentence for people.
    pub message: String,
}

/// What has become of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolFaultState {
    /// The pool has it.
    Active,
    /// Its time has passed.
    Over,
    /// The pool can't have it, or may not.
    Refused,
    /// It could not begin, or can't end.
    Failed,
}

impl PoolFaultState {
    /// Its word in tables and metrics.
    pub fn word(self) -> &'static str {
        match self {
            PoolFaultState::Active => "active",
            PoolFaultState::Over => "over",
            PoolFaultState::Refused => "refused",
            PoolFaultState::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_json() {
        for state in [
            PoolFaultState::Active,
            PoolFaultState::Over,
            PoolFaultState::Refused,
            PoolFaultState::Failed,
        ] {
            assert_eq!(serde_json::json!(state), state.word());
        }
    }
}
