//! NodeGetInfo and NodeGetCapabilities, from the command line's settings.

use hostloop_proto::csi;
use hostloop_proto::csi::node_service_capability::rpc::Type;
use hostloop_proto::csi::node_service_capability::{self, Rpc};

use super::{Config, Node, Result};
use crate::csi::int64;

impl Node {
    pub fn node_get_capabilities(
        &self,
        _: csi::NodeGetCapabilitiesRequest,
    ) -> Result<csi::NodeGetCapabilitiesResponse> {
        let capabilities = capabilities(&self.config);
        Ok(csi::NodeGetCapabilitiesResponse { capabilities })
    }

    pub fn node_get_info(&self, _: csi::NodeGetInfoRequest) -> Result<csi::NodeGetInfoResponse> {
        info(&self.config)
    }
}

/// The node ID, the volume limit and the topology of this node.
fn info(config: &Config) -> Result<csi::NodeGetInfoResponse> {
    let accessible_topology = if config.report_topology {
        Some(csi::Topology {
            segments: (*config.topology.settled()?).clone(),
        })
    } else {
        None
    };
    Ok(csi::NodeGetInfoResponse {
        node_id: config.node_id.clone(),
        max_volumes_per_node: int64(config.max_volumes),
        accessible_topology,
    })
}

/// The RPCs of the Node service that are enabled.
fn capabilities(config: &Config) -> Vec<csi::NodeServiceCapability> {
    let served = [
        (Type::StageUnstageVolume, true),
        (Type::GetVolumeStats, true),
        (Type::ExpandVolume, config.expansion),
        (Type::SingleNodeMultiWriter, true),
        (Type::VolumeMountGroup, config.capabilities.mount_group),
        (Type::GetVolumeHealth, true),
        (Type::GetStorageHealth, true),
    ];
    served
        .into_iter()
        .filter(|(_, on)| *on)
        .map(|(kind, _)| csi::NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc {
                r#type: kind.into(),
            })),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::topology::Topology;
    use crate::node::Error;

    fn config() -> Config {
        Config {
            topology: [("topology.example/node".to_owned(), "n1".to_owned())].into(),
            ..Config::new("n1")
        }
    }

    fn served(config: &Config) -> Vec<Type> {
        let kinds = capabilities(config).into_iter().map(|c| match c.r#type {
            Some(node_service_capability::Type::Rpc(rpc)) => rpc.r#type(),
            None => Type::Unknown,
        });
        kinds.collect()
    }

    #[test]
    fn capabilities_follow_the_switches() {
        let always = [
            Type::StageUnstageVolume,
            Type::GetVolumeStats,
            Type::SingleNodeMultiWriter,
            Type::GetVolumeHealth,
            Type::GetStorageHealth,
        ];
        for (expansion, mount_group, more) in [
            (false, false, &[][..]),
            (true, false, &[Type::ExpandVolume]),
            (false, true, &[Type::VolumeMountGroup]),
            (true, true, &[Type::ExpandVolume, Type::VolumeMountGroup]),
        ] {
            let mut config = config();
            config.expansion = expansion;
            config.capabilities.mount_group = mount_group;
            let mut expected = [&always, more].concat();
            expected.sort();
            let mut served = served(&config);
            served.sort();
            assert_eq!(served, expected);
        }
    }

    #[test]
    fn info_has_node_limit_and_topology() {
        let mut config = config();
        let reported = info(&config).unwrap();
        assert_eq!(
            (reported.node_id.as_str(), reported.max_volumes_per_node),
            ("n1", 0)
        );
        let topology = reported
            .accessible_topology
            .expect("is reported by default");
        assert_eq!(topology.segments["topology.example/node"], "n1");
        // A node without known labels answers with an error, and kubelet retries.
        let dir = tempfile::tempdir().unwrap();
        let labels = ["zone".to_owned()].into();
        config.topology = Topology::with_labels(Default::default(), labels, "n1", dir.path());
        assert!(matches!(info(&config), Err(Error::Place(_))));
        let zone = [("zone".to_owned(), "a".to_owned())].into();
        config.topology.take(&zone).unwrap();
        let reported = info(&config).unwrap().accessible_topology.unwrap();
        assert_eq!(reported.segments, zone);
        config.report_topology = false;
        config.max_volumes = u64::MAX;
        let reported = info(&config).unwrap();
        assert_eq!(reported.accessible_topology, None);
        assert_eq!(reported.max_volumes_per_node, i64::MAX, "never negative");
    }
}
