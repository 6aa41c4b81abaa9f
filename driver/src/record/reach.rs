//! How far a volume reaches.

use serde::{Deserialize, Serialize};

/// The nodes that may use a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// The node with the volume's pool alone.
    #[default]
    Node,
    /// All nodes that share this node's kernel.
    Kernel,
}

impl Reach {
    /// The name in records, class parameters and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Reach::Node => "node",
            Reach::Kernel => "kernel",
        }
    }

    /// Finds a reach by its name.
    pub(crate) fn parse(name: &str) -> Option<Reach> {
        [Reach::Node, Reach::Kernel]
            .into_iter()
            .find(|reach| reach.as_str() == name)
    }

    pub(super) fn is_node(&self) -> bool {
        *self == Reach::Node
    }
}
