//! ControllerGetCapabilities and GroupControllerGetCapabilities.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type;
use hostloop_proto::csi::group_controller_service_capability::rpc::Type as GroupType;

use super::{Config, Controller, Result};

/// Capabilities of the controller service with any configuration.
pub const ALWAYS: [Type; 11] = [
    Type::CreateDeleteVolume,
    Type::ListVolumes,
    Type::GetCapacity,
    Type::CreateDeleteSnapshot,
    Type::ListSnapshots,
    Type::CloneVolume,
    Type::GetVolume,
    Type::SingleNodeMultiWriter,
    Type::GetSnapshot,
    Type::GetVolumeHealth,
    Type::ListVolumeHealth,
];
/// Capabilities of the group controller service.
pub const GROUP: [GroupType; 1] = [GroupType::CreateDeleteGetVolumeGroupSnapshot];

/// The capabilities of the controller service with this configuration.
pub(super) fn capabilities(config: &Config) -> Vec<Type> {
    let switched = [
        (config.attach, Type::PublishUnpublishVolume),
        (config.attach, Type::PublishReadonly),
        (config.attach, Type::ListVolumesPublishedNodes),
        (config.expansion, Type::ExpandVolume),
        (config.modify, Type::ModifyVolume),
    ];
    let switched = switched.into_iter().filter(|(on, _)| *on);
    ALWAYS.into_iter().chain(switched.map(|(_, t)| t)).collect()
}

impl Controller {
    pub fn controller_get_capabilities(
        &self,
        _req: csi::ControllerGetCapabilitiesRequest,
    ) -> Result<csi::ControllerGetCapabilitiesResponse> {
        use csi::controller_service_capability::{Rpc, Type as Kind};
        let capabilities =
            capabilities(&self.config)
                .into_iter()
                .map(|t| csi::ControllerServiceCapability {
                    r#type: Some(Kind::Rpc(Rpc { r#type: t as i32 })),
                });
        Ok(csi::ControllerGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        })
    }

    pub fn group_controller_get_capabilities(
        &self,
        _req: csi::GroupControllerGetCapabilitiesRequest,
    ) -> Result<csi::GroupControllerGetCapabilitiesResponse> {
        use csi::group_controller_service_capability::{Rpc, Type as Kind};
        Ok(csi::GroupControllerGetCapabilitiesResponse {
            capabilities: GROUP
                .into_iter()
                .map(|t| csi::GroupControllerServiceCapability {
                    r#type: Some(Kind::Rpc(Rpc { r#type: t as i32 })),
                })
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::tests::config;

    #[test]
    fn what_is_always_offered_can_not_be_switched_off() {
        let off = Config {
            attach: false,
            expansion: false,
            modify: false,
            ..config()
        };
        assert_eq!(capabilities(&off), ALWAYS);
    }

    #[test]
    fn what_is_switched_off_is_not_offered() {
        type Case = (fn(&mut Config), &'static [Type]);
        let cases: [Case; 4] = [
            (|_| {}, &[]),
            (
                |c| c.attach = false,
                &[
                    Type::PublishUnpublishVolume,
                    Type::PublishReadonly,
                    Type::ListVolumesPublishedNodes,
                ],
            ),
            (|c| c.expansion = false, &[Type::ExpandVolume]),
            (|c| c.modify = false, &[Type::ModifyVolume]),
        ];
        let all = capabilities(&config());
        assert_eq!(all.len(), 16, "every capability of CSI 1.13");
        for (change, missing) in cases {
            let mut config = config();
            change(&mut config);
            let offered = capabilities(&config);
            let gone: Vec<Type> = all
                .iter()
                .filter(|t| !offered.contains(t))
                .copied()
                .collect();
            assert_eq!(gone, missing);
        }
    }
}
