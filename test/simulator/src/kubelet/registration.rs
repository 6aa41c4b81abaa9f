//! How kubelet makes the objects of its node, if they are not there when it starts.

use http::Method;

use super::Kubelet;
use crate::cluster::node_objects;
use crate::users::{Refused, send};

const NODES: &str = "/api/v1/nodes";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";

impl Kubelet {
    /// Registers the node, unless that is done. The driver's process has registered its labels and
    /// its entry before.
    pub(super) async fn register(&self) -> Result<(), Refused> {
        if self.state.lock().is_registered {
            return Ok(());
        }
        let [node, csi_node] = node_objects(self.node);
        let at = format!("{NODES}/{}", self.node);
        if self.api.shared_at(&at).is_none() {
            send(&self.client, Method::POST, NODES, &node).await?;
            // A new object has no status yet.
            let status = format!("{at}/status");
            send(&self.client, Method::PATCH, &status, &node).await?;
        }
        if self
            .api
            .shared_at(&format!("{CSI_NODES}/{}", self.node))
            .is_none()
        {
            send(&self.client, Method::POST, CSI_NODES, &csi_node).await?;
        }
        self.state.lock().is_registered = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hostloop_fake_api::FakeApi;

    use super::*;
    use crate::kubelet::line::Line;
    use crate::model::view::is_ready;

    #[tokio::test(start_paused = true)]
    async fn kubelet_registers_its_node_once_after_its_start() {
        let api = FakeApi::cluster();
        let line = Line::new(1, "n2");
        let client = api.connect("kubelet-2").client();
        let kubelet = Kubelet::new(api.clone(), client, "n2", line, Path::new("/nowhere"));
        for (kubelet, expected) in [
            (kubelet.clone(), true),
            (kubelet.clone(), false),
            (kubelet.successor(), true),
        ] {
            kubelet.register().await.expect("a registration");
            let node = api.get("/api/v1/nodes/n2");
            assert_eq!(node.is_some_and(|node| is_ready(&node)), expected);
            let csi_node = api.get("/apis/storage.k8s.io/v1/csinodes/n2");
            assert_eq!(csi_node.is_some(), expected);
            api.take("/api/v1/nodes/n2");
            api.take("/apis/storage.k8s.io/v1/csinodes/n2");
        }
    }
}
