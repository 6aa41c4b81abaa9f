//! Accepts TLS connections for gRPC. Handshakes run beside each other, and none lasts long. A
//! connection that has not greeted makes room for a newcomer if there are too many.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::connections::{ConnectionSlot, ConnectionSlots, accept_admitted};
use crate::grpc_server::Admitted;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The configuration of the next connection.
pub(crate) trait ServerConfigs: Send + Sync + 'static {
    /// Returns the configuration; `None` if there is none yet.
    fn current(&self) -> impl Future<Output = Option<Arc<ServerConfig>>> + Send;
}

/// The connections of a listener, at most `most` at a time. The stream has no errors.
pub(crate) fn connections<C: ServerConfigs>(
    listener: TcpListener,
    most: usize,
    configs: Arc<C>,
) -> impl Stream<Item = io::Result<Admitted<TlsStream<TcpStream>>>> {
    let slots = ConnectionSlots::new(most);
    stream::unfold((listener, slots), |(listener, slots)| async {
        let accepted = accept_admitted(&listener, &slots).await;
        Some((accepted, (listener, slots)))
    })
    .map(move |(stream, slot)| shake_hands(stream, slot, configs.clone()))
    .buffer_unordered(most)
    .filter_map(|connection| async { connection.map(Ok) })
}

/// Ends without a connection if the handshake fails, takes too long, or another connection takes the
/// slot meanwhile.
async fn shake_hands<C: ServerConfigs>(
    stream: TcpStream,
    slot: ConnectionSlot,
    configs: Arc<C>,
) -> Option<Admitted<TlsStream<TcpStream>>> {
    let displaced = slot.displaced().clone();
    let shaken = timeout(HANDSHAKE, async {
        let config = configs.current().await?;
        let accepted = TlsAcceptor::from(config).accept(stream).await;
        accepted
            .inspect_err(|error| tracing::debug!(%error, "a TLS handshake failed"))
            .ok()
    });
    let stream = displaced.run_until_cancelled(shaken).await?.ok()??;
    Some(Admitted::new(stream, slot))
}
