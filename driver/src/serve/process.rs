//! What a process needs with or without a driver in it: signals, and the HTTP endpoint.

use std::time::Duration;

use hostloop_controllers::tasks::Tasks;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::error::Error;
use crate::grpc::http;

/// How long calls under way may take at the end; Kubernetes kills after 30 s.
pub(super) const GRACE: Duration = Duration::from_secs(25);

/// Serves `--http-endpoint`, if it is given.
pub(super) async fn show(
    address: Option<String>,
    shown: http::Shown,
    stop: &CancellationToken,
    roles: &mut Tasks,
) -> Result<(), Error> {
    let Some(address) = address else {
        return Ok(());
    };
    let listener = TcpListener::bind(&address).await;
    let listener = listener.map_err(|source| Error::Http { address, source })?;
    let serving = http::serve(listener, shown, stop.clone().cancelled_owned());
    roles.start("the HTTP endpoint", async {
        serving.await;
        Ok(())
    });
    Ok(())
}

fn listen(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| Error::Start("listening to signals", error))
}

/// The signals that stop the process.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    pub(super) fn install() -> Result<Self, Error> {
        Ok(Signals {
            term: listen(SignalKind::terminate())?,
            int: listen(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}
