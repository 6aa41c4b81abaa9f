//! Keeps the marker of this node, which shows other nodes of its kernel that it is there.

use super::{Node, Result};
use crate::reach::markers::{self, Marker};

impl Node {
    /// Makes the marker if it is not there. Then pins again the devices of shared volumes in use here:
    /// pins of an earlier marker count as those of a container that is gone. The first call gives back
    /// the pins that an earlier process has left. `None` if the node shares no kernel.
    pub fn keep_marker(&self) -> Result<Option<Marker>> {
        let Some(kernel) = self.config.kernels.of(&self.config.node_id) else {
            return Ok(None);
        };
        let state_dir = &self.pools.options().state_dir;
        let node = &self.config.node_id;
        let marker = markers::keep(self.pools.kernel(), state_dir, &kernel.name, node)?;
        self.drop_left_pins()?;
        self.renew_pins(&marker)?;
        Ok(Some(marker))
    }
}
