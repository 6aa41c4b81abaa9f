//! The signals that stop the process.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::Error;

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

fn listen(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| Error::Start("listening to signals", error))
}
