//! The node that takes the cuts.

use hostloop_report::cuts::CutsLine;

use crate::cluster::Cluster;
use crate::node_pods::{Burst, NodeError, NodePod};

/// What an exploration asks of the node with the volume.
pub(super) trait CutNode {
    fn node_name(&self) -> &str;

    /// Takes cuts of a volume, and passes each line on as it comes.
    async fn take(
        &self,
        volume: &str,
        burst: Burst,
        said: impl FnMut(CutsLine),
    ) -> Result<(), NodeError>;

    /// Makes an ordinary snapshot of a cut, which stays.
    async fn keep(&self, snapshot: &str) -> Result<(), NodeError>;

    /// Deletes the cuts of an exploration that are left, and returns how many they were.
    async fn drop_all(&self, exploration: &str) -> Result<u32, NodeError>;
}

/// A node of a cluster: its pod runs the commands.
pub(super) struct PodNode<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) pod: &'a NodePod,
}

impl CutNode for PodNode<'_> {
    fn node_name(&self) -> &str {
        &self.pod.node
    }

    async fn take(
        &self,
        volume: &str,
        burst: Burst,
        said: impl FnMut(CutsLine),
    ) -> Result<(), NodeError> {
        self.pod.take_cuts(self.cluster, volume, burst, said).await
    }

    async fn keep(&self, snapshot: &str) -> Result<(), NodeError> {
        self.pod.keep_cut(self.cluster, snapshot).await?;
        Ok(())
    }

    async fn drop_all(&self, exploration: &str) -> Result<u32, NodeError> {
        let dropped = self.pod.drop_cuts(self.cluster, exploration).await?;
        Ok(dropped.dropped)
    }
}
