//! A node of a fleet.

use std::ops::Deref;

use crate::front::process::Pod;
use crate::memory::MemoryDriver;

/// A node: its driver and its controllers' pod.
pub struct Member {
    /// The name of the node and of the pod.
    pub node: String,
    /// The node's driver.
    pub driver: MemoryDriver,
    pub(super) pod: Pod,
}

impl Deref for Member {
    type Target = Pod;

    fn deref(&self) -> &Pod {
        &self.pod
    }
}
