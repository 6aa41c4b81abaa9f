//! A proxy in front of any CSI driver: it passes calls through, records them, and makes them fail
//! by rules.
//!
//! Bytes pass as they are, in both directions: metadata, messages, streams, trailers, and calls of
//! services that this program does not know. Each connection of a client has a connection to the
//! driver of its own, and they end together, as if the client were connected to the driver. The
//! proxy reads only the first message of a call of CSI.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::rpc_faults::FaultInjector;

mod answer_body;
mod call_record;
mod connection;
mod known_call;
pub mod recording;
mod relay;
mod request_body;

#[cfg(test)]
mod tests;

/// A proxy for one driver.
#[derive(Debug)]
pub struct Proxy {
    /// The driver's socket.
    pub driver: PathBuf,
    /// The faults of calls.
    pub faults: Option<Arc<FaultInjector>>,
}

impl Proxy {
    /// Serves connections until the stop, and then until the calls under way are answered.
    pub async fn serve<S, C>(self: Arc<Self>, connections: S, stop: CancellationToken)
    where
        S: Stream<Item = io::Result<C>>,
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let open = TaskTracker::new();
        let mut connections = pin!(connections);
        loop {
            let next = tokio::select! {
                next = connections.next() => next,
                () = stop.cancelled() => None,
            };
            match next {
                Some(Ok(caller)) => {
                    open.spawn(connection::serve(self.clone(), caller, stop.clone()));
                }
                // The listener goes on after an error.
                Some(Err(error)) => tracing::warn!(%error, "can't accept a connection"),
                None => break,
            }
        }
        open.close();
        open.wait().await;
    }
}
