//! A node that leaves the cluster, and may return.

use crate::machine::Machine;

/// Whether a node belongs to the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Absence {
    #[default]
    Present,
    /// It has left, and returns.
    Away,
    /// It has left for good, with its data.
    Gone,
}

impl Machine {
    /// The node, which stands still, leaves the cluster.
    pub(crate) fn leave(&mut self, for_good: bool) {
        self.absence = if for_good {
            Absence::Gone
        } else {
            Absence::Away
        };
    }

    /// The node belongs to the cluster again, unless it has left for good.
    pub(crate) fn come_back(&mut self) {
        if self.absence == Absence::Away {
            self.absence = Absence::Present;
        }
    }

    /// True if the node does not belong to the cluster.
    pub(crate) fn is_away(&self) -> bool {
        self.absence != Absence::Present
    }

    /// True if the node has left for good.
    pub(crate) fn is_gone(&self) -> bool {
        self.absence == Absence::Gone
    }
}
