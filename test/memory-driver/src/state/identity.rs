//! The Identity service.

use hostloop_proto::csi;
use hostloop_proto::csi::plugin_capability::{Service, Type, VolumeExpansion};

use super::{Answer, State};
use crate::options::Options;

impl State {
    pub(crate) fn get_plugin_info(
        &mut self,
        options: &Options,
        _: csi::GetPluginInfoRequest,
    ) -> Answer<csi::GetPluginInfoResponse> {
        Ok(csi::GetPluginInfoResponse {
            name: options.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Default::default()
        })
    }

    pub(crate) fn get_plugin_capabilities(
        &mut self,
        options: &Options,
        _: csi::GetPluginCapabilitiesRequest,
    ) -> Answer<csi::GetPluginCapabilitiesResponse> {
        let services = options.capabilities.services.iter();
        let services = services.map(|s| {
            Type::Service(Service {
                r#type: (*s).into(),
            })
        });
        let expansion = options
            .capabilities
            .expansion
            .map(|e| Type::VolumeExpansion(VolumeExpansion { r#type: e.into() }));
        let capability = |of| csi::PluginCapability { r#type: Some(of) };
        Ok(csi::GetPluginCapabilitiesResponse {
            capabilities: services.chain(expansion).map(capability).collect(),
        })
    }

    pub(crate) fn probe(
        &mut self,
        _: &Options,
        _: csi::ProbeRequest,
    ) -> Answer<csi::ProbeResponse> {
        Ok(csi::ProbeResponse { ready: Some(true) })
    }
}
