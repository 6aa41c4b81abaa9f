//! Kubelet's line to the driver on its node. It is open while the driver's process lives.

use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi::node_client::NodeClient;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Response, Status};

use crate::dice::Dice;
use crate::shim;

const DEADLINE: Duration = Duration::from_secs(120);

/// A line to a driver. Clones share it.
#[derive(Clone)]
pub(crate) struct Line(Arc<Mutex<State>>);

struct State {
    seed: u64,
    node: &'static str,
    /// The driver's services, until the token ends its life.
    open: Option<(NodeClient<Routes>, CancellationToken)>,
    /// So many of a hundred answers are lost, and until when.
    lost: (u64, Duration),
    calls: u64,
}

/// A call under way.
pub(super) struct Call {
    dead: CancellationToken,
    is_lost: bool,
}

impl Line {
    /// A line to the driver of a node, which is not there yet.
    pub(crate) fn new(seed: u64, node: &'static str) -> Line {
        Line(Arc::new(Mutex::new(State {
            seed,
            node,
            open: None,
            lost: (0, Duration::ZERO),
            calls: 0,
        })))
    }

    /// Opens the line to a driver that lives until `dead`.
    pub(crate) fn open(&self, routes: Routes, dead: CancellationToken) {
        self.0.lock().open = Some((NodeClient::new(routes.prepare()), dead));
    }

    /// Closes the line, and drops the driver.
    pub(crate) fn close(&self) {
        self.0.lock().open = None;
    }

    /// Loses so many of a hundred answers for some time.
    pub(crate) fn lose_answers(&self, percent: u64, time: Duration) {
        self.0.lock().lost = (percent, shim::now() + time);
    }

    /// Begins a call. Fails if there is no driver.
    pub(super) fn begin(&self) -> Result<(NodeClient<Routes>, Call), Status> {
        let mut state = self.0.lock();
        state.calls += 1;
        let (percent, until) = state.lost;
        let is_lost =
            shim::now() < until && Dice::of(state.seed, state.node, state.calls).percent(percent);
        let Some((client, dead)) = state.open.clone() else {
            return Err(Status::unavailable("connection refused"));
        };
        Ok((client, Call { dead, is_lost }))
    }
}

impl Call {
    /// Waits for the answer, unless the driver dies or the answer is lost.
    pub(super) async fn answer<T>(
        self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        let timely = tokio::select! {
            biased;
            () = self.dead.cancelled() => {
                return Err(Status::unavailable("the connection broke off"));
            }
            answer = tokio::time::timeout(DEADLINE, call) => answer,
        };
        match timely {
            Ok(Ok(_)) if self.is_lost => Err(Status::unavailable("the answer was lost")),
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("no answer")),
        }
    }
}
