//! Decides which node owns a volume.

use std::time::Duration;

use hostloop_proto::csi::ControllerGetVolumeRequest;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tonic::Code;

use crate::api::pv;
use crate::api::scope::{NODE_LABEL, Scope, node_label};
use crate::controller::Context;
use crate::csi::driver::ControllerCapability;
use crate::csi::{Failure, Pools};

/// Which process is responsible for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// This process.
    Local,
    /// Another node.
    Remote,
    /// Unknown. The driver may know.
    Unknown,
}

/// Decides which node owns a volume of the driver. The handle decides if the driver's pools are
/// known, and the node affinity if the volume has one. The volume is served only if neither
/// contradicts. The affinity of a shared volume fits all nodes of its kernel, so it names none of them,
/// and its label decides instead: each of these nodes could make a volume with the handle of another
/// one's data. Only the owner may conclude that a volume does not exist.
pub fn owner(scope: &Scope, pools: &Pools, volume: &PersistentVolume) -> Ownership {
    if *scope == Scope::Cluster {
        return Ownership::Local;
    }
    if is_labelled_elsewhere(scope, volume) {
        return Ownership::Remote;
    }
    let own = pv::csi(volume).and_then(|csi| pools.own(&csi.volume_handle));
    match (own, scope.holds(volume)) {
        (Some(false), _) | (_, Some(false)) => Ownership::Remote,
        (Some(true), _) => Ownership::Local,
        (None, Some(true)) if !pv::is_shared(volume) => Ownership::Local,
        (None, _) => Ownership::Unknown,
    }
}

/// True if the label of a shared volume names another node than this process's.
fn is_labelled_elsewhere(scope: &Scope, volume: &PersistentVolume) -> bool {
    let label = volume.labels().get(NODE_LABEL);
    let is_elsewhere = scope
        .node()
        .zip(label)
        .is_some_and(|(node, label)| *label != node_label(node));
    pv::is_shared(volume) && is_elsewhere
}

impl Context {
    /// Decides which node owns a volume of the driver.
    pub fn owner(&self, volume: &PersistentVolume) -> Ownership {
        owner(&self.scope, &self.pools, volume)
    }

    /// True if this node's driver has the volume; `None` if the driver does not support the
    /// question.
    pub async fn driver_has(&self, id: &str, timeout: Duration) -> Result<Option<bool>, Failure> {
        if !self.driver.can(ControllerCapability::GetVolume) {
            return Ok(None);
        }
        let volume_id = id.to_owned();
        let request = ControllerGetVolumeRequest { volume_id };
        match self
            .driver
            .csi
            .controller_get_volume(request, timeout)
            .await
        {
            Ok(_) => Ok(Some(true)),
            Err(failure) if failure.code() == Code::NotFound => Ok(Some(false)),
            Err(failure) => Err(failure),
        }
    }

    /// True unless another node owns the volume of the driver.
    pub fn may_have(&self, volume: &PersistentVolume) -> bool {
        self.owner(volume) != Ownership::Remote
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    /// All nodes of the kernel fit its affinity.
    #[test]
    fn the_pool_and_the_label_show_the_owner_of_a_shared_volume() {
        let here = testing::node_scope("n1", "t/node");
        let reported = || Pools::reported(|| vec!["a1".to_owned()]);
        for (pools, handle, nodes, expected) in [
            (reported(), "vol-a1-0", &["n1", "n2"][..], Ownership::Local),
            (reported(), "vol-b2-0", &["n1", "n2"], Ownership::Remote),
            (reported(), "vol-a1-0", &["n2"], Ownership::Remote),
            (
                Pools::default(),
                "vol-a1-0",
                &["n1", "n2"],
                Ownership::Unknown,
            ),
            (Pools::default(), "vol-a1-0", &["n2"], Ownership::Remote),
        ] {
            let volume = testing::shared(testing::volume("v", "d", handle), "t/node", nodes);
            let labelled = |node: &str| json!({"metadata": {"labels": {NODE_LABEL: node}}});
            // Another node made the volume, with the handle of the data here.
            for (label, expected) in [
                (json!({}), expected),
                (labelled("n1"), expected),
                (labelled("n2"), Ownership::Remote),
            ] {
                let volume = testing::with(volume.clone(), &label);
                let found = owner(&here, &pools, &testing::read(volume));
                assert_eq!(found, expected, "{pools:?} {handle} {nodes:?} {label}");
            }
        }
    }

    #[test]
    fn owners_of_volumes() {
        let here = testing::node_scope("n1", "t/node");
        let at = |node: &str| testing::affinity("t/node", &[node]);
        let by_zone = || testing::affinity("zone", &["z"]);
        let reported = || Pools::reported(|| vec!["a1".to_owned()]);
        for (pools, handle, affinity, expected) in [
            (reported(), "vol-a1-0", at("n1"), Ownership::Local),
            (reported(), "vol-a1-0", Value::Null, Ownership::Local),
            (reported(), "vol-a1-0", json!({}), Ownership::Local),
            (reported(), "vol-a1-0", at("n2"), Ownership::Remote),
            (reported(), "vol-b2-0", at("n1"), Ownership::Remote),
            (reported(), "vol-b2-0", Value::Null, Ownership::Remote),
            (Pools::default(), "vol-a1-0", at("n1"), Ownership::Local),
            (Pools::default(), "vol-a1-0", at("n2"), Ownership::Remote),
            (
                Pools::default(),
                "vol-a1-0",
                Value::Null,
                Ownership::Unknown,
            ),
            (Pools::default(), "vol-a1-0", by_zone(), Ownership::Unknown),
            (reported(), "vol-a1-0", by_zone(), Ownership::Local),
        ] {
            let volume = testing::volume("v", "d", handle);
            let affine = json!({"spec": {"nodeAffinity": affinity}});
            let volume = testing::read(testing::with(volume, affine));
            let found = owner(&here, &pools, &volume);
            assert_eq!(found, expected, "{pools:?} {handle} {affinity}");
            assert_eq!(owner(&Scope::Cluster, &pools, &volume), Ownership::Local);
            // A leader without a node owns no volume. Without an affinity the owner is unknown.
            let expected = if affinity["required"].is_null() {
                Ownership::Unknown
            } else {
                Ownership::Remote
            };
            let found = owner(&Scope::Leader, &Pools::default(), &volume);
            assert_eq!(found, expected, "{handle} {affinity}");
        }
    }
}
