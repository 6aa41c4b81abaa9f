//! The Identity service over gRPC.

use std::sync::Arc;

use hostloop_proto::csi;
use hostloop_proto::csi::identity_server;
use tonic::{Request, Response, Status};

use super::call_log::{Interest, Report};
use super::metrics::Calls;
use crate::csi::identity::Identity;

pub(crate) struct IdentityService {
    pub(crate) identity: Arc<Identity>,
    pub(crate) calls: Arc<Calls>,
}

impl IdentityService {
    fn done<R>(&self, method: &'static str, answer: R) -> Result<Response<R>, Status> {
        Report::begin(&self.calls, method, "", Interest::Question).end(None);
        Ok(Response::new(answer))
    }
}

#[tonic::async_trait]
impl identity_server::Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        self.done(
            "/csi.v1.Identity/GetPluginInfo",
            self.identity.plugin_info(),
        )
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        let capabilities = self.identity.capabilities();
        self.done("/csi.v1.Identity/GetPluginCapabilities", capabilities)
    }

    /// Reports ready as soon as the socket exists. Missing pools don't matter: the driver opens a
    /// pool when it appears, and a restart would not bring it back. Probe takes no blocking thread,
    /// so a hanging filesystem can't delay it.
    async fn probe(
        &self,
        _: Request<csi::ProbeRequest>,
    ) -> Result<Response<csi::ProbeResponse>, Status> {
        let ready = csi::ProbeResponse { ready: Some(true) };
        self.done("/csi.v1.Identity/Probe", ready)
    }
}
