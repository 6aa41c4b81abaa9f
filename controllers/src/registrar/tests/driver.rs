//! A driver that has nothing but a name.

use std::sync::{Arc, Mutex};

use csi::identity_server::{Identity, IdentityServer};
use hostloop_proto::csi;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, async_trait};

use crate::runtime::csi::Csi;

/// What it answers to Probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unset,
    Ready,
    NotReady,
    Broken,
    Hanging,
}

/// The driver, and how often it was probed.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) name: &'static str,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) probes: Arc<Mutex<u32>>,
}

impl Driver {
    pub(crate) fn new(state: State) -> Self {
        Driver {
            name: "memory.csi.dev",
            state: Arc::new(Mutex::new(state)),
            probes: Arc::default(),
        }
    }

    pub(crate) fn set(&self, state: State) {
        *self.state.lock().unwrap() = state;
    }

    /// Serves it at the other end of pipes in memory.
    pub(crate) fn serve(&self) -> Csi {
        let (sender, receiver) = mpsc::unbounded_channel::<DuplexStream>();
        let connections = UnboundedReceiverStream::new(receiver).map(Ok::<_, std::io::Error>);
        let server = Server::builder().add_service(IdentityServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(connections));
        Csi::over(move || {
            let (here, there) = tokio::io::duplex(1 << 16);
            let sent = sender.send(there);
            async move { sent.map(|()| here).map_err(std::io::Error::other) }
        })
    }
}

#[async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: self.name.to_owned(),
            ..csi::GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("none"))
    }

    async fn probe(
        &self,
        _: Request<csi::ProbeRequest>,
    ) -> Result<Response<csi::ProbeResponse>, Status> {
        *self.probes.lock().unwrap() += 1;
        let state = *self.state.lock().unwrap();
        let ready = match state {
            State::Unset => None,
            State::Ready => Some(true),
            State::NotReady => Some(false),
            State::Broken => return Err(Status::failed_precondition("the disk is away")),
            State::Hanging => std::future::pending().await,
        };
        Ok(Response::new(csi::ProbeResponse { ready }))
    }
}
