//! A minimal driver that has only a name.

use std::sync::Arc;

use futures::FutureExt;
use hostloop_memory_driver::Handlers;
use hostloop_proto::csi;
use parking_lot::Mutex;
use tonic::Status;

use crate::csi::Csi;
use crate::testing::connect;

/// The answer to Probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unset,
    Ready,
    NotReady,
    Broken,
    Hanging,
}

/// The driver, with a count of its Probe calls.
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
        *self.state.lock() = state;
    }

    /// Serves the driver over in-memory pipes.
    pub(crate) fn serve(&self) -> Csi {
        let handlers = Handlers::default();
        let name = self.name.to_owned();
        handlers.on(move |_: csi::GetPluginInfoRequest| {
            Ok(csi::GetPluginInfoResponse {
                name: name.clone(),
                ..Default::default()
            })
        });
        let driver = self.clone();
        handlers.on_async(move |_: csi::ProbeRequest| {
            let driver = driver.clone();
            async move { driver.probe().await }.boxed()
        });
        connect(&handlers)
    }

    async fn probe(&self) -> Result<csi::ProbeResponse, Status> {
        *self.probes.lock() += 1;
        let state = *self.state.lock();
        let ready = match state {
            State::Unset => None,
            State::Ready => Some(true),
            State::NotReady => Some(false),
            State::Broken => return Err(Status::failed_precondition("the disk is away")),
            State::Hanging => std::future::pending().await,
        };
        Ok(csi::ProbeResponse { ready })
    }
}
