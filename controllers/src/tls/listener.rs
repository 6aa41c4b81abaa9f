//! Accepts TLS connections for gRPC. Handshakes run beside each other, and none lasts long. If there
//! are too many, a newcomer takes the place of one that shakes hands, or of one without a client's
//! certificate and without a stream.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::client::kube::Limit;
use crate::connections::{ConnectionSlot, ConnectionSlots, accept_admitted};
use crate::grpc_server::Admitted;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// New connections per second, and after a quiet time: a flood of handshakes leaves most of the
/// processor to the controllers of this process.
const PER_SECOND: f64 = 500.0;
const BURST: u32 = 500;

/// The configuration of the next connection.
pub(crate) trait ServerConfigs: Send + Sync + 'static {
    /// True if a client that has shaken hands has shown a certificate.
    const ARE_CLIENTS_KNOWN: bool;

    /// Returns the configuration; `None` if there is none yet.
    fn current(&self) -> impl Future<Output = Option<Arc<ServerConfig>>> + Send;
}

/// The connections of a listener, at most `most` at a time. The stream has no errors.
pub(crate) fn connections<C: ServerConfigs>(
    listener: TcpListener,
    most: usize,
    configs: Arc<C>,
) -> impl Stream<Item = io::Result<Admitted<TlsStream<TcpStream>>>> {
    let (slots, pace) = (ConnectionSlots::new(most), Limit::new(PER_SECOND, BURST));
    stream::unfold((listener, slots, pace), |(listener, slots, pace)| async {
        if let Some(pace) = &pace {
            pace.take().await;
        }
        let accepted = accept_admitted(&listener, &slots).await;
        Some((accepted, (listener, slots, pace)))
    })
    .map(move |(stream, slot)| shake_hands(stream, slot, configs.clone()))
    // One more than there are slots: a newcomer is accepted, and displaces another one, also while
    // all connections shake hands.
    .buffer_unordered(most + 1)
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
    let peer = address_of(&stream);
    let shaken = timeout(HANDSHAKE, async {
        let config = configs.current().await?;
        let accepted = TlsAcceptor::from(config).accept(stream).await;
        accepted
            .inspect_err(|error| tracing::debug!(%error, "a TLS handshake failed"))
            .ok()
    });
    let stream = displaced.run_until_cancelled(shaken).await?.ok()??;
    Some(Admitted::of_network(
        stream,
        slot,
        peer,
        C::ARE_CLIENTS_KNOWN,
    ))
}

/// The address of the other side. On a socket for both, IPv4 addresses come as IPv6 ones.
fn address_of(stream: &TcpStream) -> Option<IpAddr> {
    let address = stream.peer_addr().ok()?;
    Some(address.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustls::pki_types::ServerName;
    use tokio_rustls::TlsConnector;
    use tonic::transport::server::Connected;

    use super::*;
    use crate::tls::certificates::Identity;
    use crate::tls::config;

    struct OneConfig(Arc<ServerConfig>);

    impl ServerConfigs for OneConfig {
        const ARE_CLIENTS_KNOWN: bool = false;

        async fn current(&self) -> Option<Arc<ServerConfig>> {
            Some(self.0.clone())
        }
    }

    /// A flood of clients that say nothing, twice as many as there are slots.
    #[tokio::test]
    async fn a_newcomer_does_not_wait_for_handshakes_of_others() {
        const MOST: usize = 4;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let identity = Identity::self_signed(1_800_000_000).unwrap();
        let configs = OneConfig(config::public_server(&identity).unwrap());
        let accepted = connections(listener, MOST, Arc::new(configs));
        tokio::pin!(accepted);
        let mut silent = Vec::new();
        for _ in 0..2 * MOST {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let client = config::client(&identity, identity.fingerprint()).unwrap();
        let called = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::from(address.ip());
            TlsConnector::from(client).connect(name, stream).await
        };
        let met = async { tokio::join!(accepted.next(), called) };
        let (accepted, called) = timeout(HANDSHAKE / 2, met).await.unwrap();
        assert!(called.is_ok(), "{called:?}");
        let info = accepted.unwrap().unwrap().connect_info();
        assert_eq!(info.peer, Some(Ipv4Addr::LOCALHOST.into()));
        drop(silent);
    }
}
