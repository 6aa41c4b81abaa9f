//! The driver's name, version and plugin capabilities: the Identity service without Probe.
//!
//! Pure: answers follow from the configuration.

use std::collections::BTreeMap;

use hostloop_proto::csi;
use hostloop_proto::csi::plugin_capability::{Service, Type, VolumeExpansion, service};
use hostloop_proto::manifest::MODE_CHANGE_PARAMETER;

/// The class parameter with which an administrator allows a filesystem from the bytes of a block
/// device. The manifest names it, so that a provisioner can pass on an administrator's annotation.
pub const ALLOW_VOLUME_MODE_CHANGE: &str = "allowVolumeModeChange";

/// Plugin services that every configuration has.
pub const ALWAYS: [service::Type; 2] = [
    service::Type::ControllerService,
    service::Type::GroupControllerService,
];

/// The command line's settings for the plugin as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The driver's name, in domain name notation.
    pub name: String,
    /// The version that GetPluginInfo reports.
    pub vendor_version: String,
    /// Report that volumes and snapshots are reachable from their node only (`--enable-topology`).
    pub topology: bool,
    /// Report that volumes can be expanded.
    pub expansion: bool,
    /// Report that changed blocks can be requested.
    pub snapshot_metadata: bool,
}

impl Identity {
    pub fn plugin_info(&self) -> csi::GetPluginInfoResponse {
        let manifest = [
            ("build", env!("CARGO_PKG_VERSION")),
            ("csi", "1.13.0"),
            ("license", env!("CARGO_PKG_LICENSE")),
            (MODE_CHANGE_PARAMETER, ALLOW_VOLUME_MODE_CHANGE),
        ];
        csi::GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: self.vendor_version.clone(),
            manifest: BTreeMap::from(manifest.map(|(k, v)| (k.to_owned(), v.to_owned()))),
        }
    }

    /// GetPluginCapabilities.
    ///
    /// It reports ONLINE expansion: OFFLINE would mean that a volume in use can't be expanded.
    pub fn capabilities(&self) -> csi::GetPluginCapabilitiesResponse {
        use service::Type::*;
        let switched = [
            (self.topology, VolumeAccessibilityConstraints),
            (self.snapshot_metadata, SnapshotMetadataService),
            (self.topology, SnapshotAccessibilityConstraints),
        ];
        let switched = switched.into_iter().filter(|(on, _)| *on);
        let services = ALWAYS
            .into_iter()
            .chain(switched.map(|(_, service)| service))
            .map(|service| {
                Type::Service(Service {
                    r#type: service.into(),
                })
            });
        let expansion = self.expansion.then(|| {
            let online = csi::plugin_capability::volume_expansion::Type::Online;
            Type::VolumeExpansion(VolumeExpansion {
                r#type: online.into(),
            })
        });
        let capabilities = services
            .chain(expansion)
            .map(|capability| csi::PluginCapability {
                r#type: Some(capability),
            })
            .collect();
        csi::GetPluginCapabilitiesResponse { capabilities }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            name: "hostloop.csi.dev".into(),
            vendor_version: "1.2.3".into(),
            topology: true,
            expansion: true,
            snapshot_metadata: true,
        }
    }

    fn names(identity: &Identity) -> Vec<&'static str> {
        let name = |capability: csi::PluginCapability| match capability.r#type {
            Some(Type::Service(s)) => s.r#type().as_str_name(),
            Some(Type::VolumeExpansion(e)) => e.r#type().as_str_name(),
            None => "nothing",
        };
        let all = identity.capabilities().capabilities;
        all.into_iter().map(name).collect()
    }

    #[test]
    fn capabilities_follow_the_configuration() {
        let all = [
            "CONTROLLER_SERVICE",
            "GROUP_CONTROLLER_SERVICE",
            "VOLUME_ACCESSIBILITY_CONSTRAINTS",
            "SNAPSHOT_METADATA_SERVICE",
            "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
            "ONLINE",
        ];
        type Change = fn(&mut Identity);
        let cases: [(Change, &[&str]); 4] = [
            (|_| {}, &[]),
            (
                |i| i.topology = false,
                &[
                    "VOLUME_ACCESSIBILITY_CONSTRAINTS",
                    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
                ],
            ),
            (|i| i.expansion = false, &["ONLINE"]),
            (
                |i| i.snapshot_metadata = false,
                &["SNAPSHOT_METADATA_SERVICE"],
            ),
        ];
        for (change, missing) in cases {
            let mut identity = identity();
            change(&mut identity);
            let rest = all.into_iter().filter(|name| !missing.contains(name));
            assert_eq!(names(&identity), rest.collect::<Vec<_>>());
        }
    }
}
