//! The Identity service on the wire.

use std::sync::Arc;

use hostloop_proto::csi;
use hostloop_proto::csi::identity_server;
use tonic::{Request, Response, Status};

use super::observe::{Interest, Observer};
use super::probe::Prober;
use crate::identity::Identity;

pub(crate) struct IdentityService {
    pub(crate) identity: Arc<Identity>,
    pub(crate) prober: Prober,
    pub(crate) observer: Observer,
}

impl IdentityService {
    fn done<R>(&self, method: &'static str, answer: R) -> Result<Response<R>, Status> {
        self.observer
            .begin(method, "", Interest::Question)
            .end(None);
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

    /// Not ready is an answer, not an error: the driver itself is well, and restarting it would
    /// not bring a pool back, whereas it opens a missing one by itself once it turns up.
    async fn probe(
        &self,
        _: Request<csi::ProbeRequest>,
    ) -> Result<Response<csi::ProbeResponse>, Status> {
        let report = self
            .observer
            .begin("/csi.v1.Identity/Probe", "", Interest::Question);
        let ready = self.prober.ready().await.is_ok();
        report.end(None);
        Ok(Response::new(csi::ProbeResponse { ready: Some(ready) }))
    }
}
