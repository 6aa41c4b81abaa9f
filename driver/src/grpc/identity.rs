//! The Identity service over gRPC.

use std::future::ready;
use std::sync::Arc;

use hostloop_proto::csi;
use hostloop_proto::csi::identity_server;
use tonic::{Request, Response, Status};

use super::call_line::Interest;
use super::call_log::Report;
use super::metrics::Calls;
use crate::csi::identity::Identity;
use crate::rpc_faults::{CallSubject, FaultInjector, around};

pub(crate) struct IdentityService {
    pub(crate) identity: Arc<Identity>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) faults: Option<Arc<FaultInjector>>,
}

impl IdentityService {
    async fn done<R: Send>(&self, method: &'static str, answer: R) -> Result<Response<R>, Status> {
        let report = Report::begin(&self.calls, method, "", Interest::Question);
        let faults = self.faults.as_ref();
        let fault = faults.and_then(|faults| faults.decide(method, &CallSubject::default()));
        let answer = around(fault, ready(Ok(answer))).await;
        report.end(answer.as_ref().err());
        answer.map(Response::new)
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
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        let capabilities = self.identity.capabilities();
        self.done("/csi.v1.Identity/GetPluginCapabilities", capabilities)
            .await
    }

    /// Reports ready as soon as the socket exists. Missing pools don't matter: the driver opens a
    /// pool when it appears, and a restart would not bring it back. Probe takes no blocking thread,
    /// so a hanging filesystem can't delay it.
    async fn probe(
        &self,
        _: Request<csi::ProbeRequest>,
    ) -> Result<Response<csi::ProbeResponse>, Status> {
        let ready = csi::ProbeResponse { ready: Some(true) };
        self.done("/csi.v1.Identity/Probe", ready).await
    }
}

#[cfg(test)]
mod tests {
    use identity_server::Identity as _;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn probe_fails_by_a_rule() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faults.yaml");
        std::fs::write(
            &path,
            "rules: [{method: Probe, times: 1, code: UNAVAILABLE}]",
        )
        .unwrap();
        let identity = Identity {
            name: "d".to_owned(),
            vendor_version: "0".to_owned(),
            topology: true,
            expansion: true,
            snapshot_metadata: true,
        };
        let service = IdentityService {
            identity: Arc::new(identity),
            calls: Arc::new(Calls::new("d")),
            faults: Some(Arc::new(FaultInjector::open(&path, None).unwrap())),
        };
        let failed = service.probe(Request::new(csi::ProbeRequest {})).await;
        assert_eq!(failed.unwrap_err().code(), Code::Unavailable);
        let ready = service.probe(Request::new(csi::ProbeRequest {})).await;
        assert_eq!(ready.unwrap().into_inner().ready, Some(true));
    }
}
