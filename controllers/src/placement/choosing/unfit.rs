//! Reasons why a node can't take a claim.

use k8s_openapi::api::storage::v1::CSINode;

use crate::api::node_fitness::UnfitNode;
use crate::api::{node, quantity};

/// Why a node can't take a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error(transparent)]
    Node(#[from] UnfitNode),
    /// The driver is not in the node's CSINode.
    #[error("does not run the CSI driver")]
    NoDriver,
    #[error("does not have the claim's source")]
    NoSource,
    #[error("had no room for it a moment ago")]
    Refused,
    /// The node has no capacity object for the class.
    #[error("has not published its capacity")]
    CapacityUnknown,
    #[error("{}", little(*left))]
    Little {
        /// Bytes that are left after the assignments.
        left: i64,
    },
    #[error("makes volumes up to {}", quantity::written(*largest))]
    TooLarge {
        /// Bytes of the largest volume it makes.
        largest: i64,
    },
}

fn little(left: i64) -> String {
    match left {
        0 => "has none for volumes of this class".to_owned(),
        left => format!("has {} left", quantity::written(left.max(0))),
    }
}

/// True if the driver is not in a node's CSINode.
pub(super) fn lacks_driver(registered: Option<&CSINode>, driver: &str) -> bool {
    registered.is_none_or(|node| node::registered(node, driver).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{csi_node, read};

    #[test]
    fn nodes_without_the_driver() {
        for (drivers, lacks) in [(None, true), (Some("e"), true), (Some("d"), false)] {
            let csi_node = drivers.map(|driver| read(csi_node("n", driver, "t/node")));
            assert_eq!(lacks_driver(csi_node.as_ref(), "d"), lacks, "{drivers:?}");
        }
    }
}
