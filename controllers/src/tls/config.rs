//! TLS 1.3 with certificates that are trusted by an authority or by their fingerprint. No ticket
//! resumes a session: each connection shows its certificates.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{WantsServerCert, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};

use super::certificates::{Fingerprint, Identity};
use super::provider::provider;

/// The protocol of gRPC, which its clients insist on.
const HTTP2: &[u8] = b"h2";

/// A server for everyone.
pub fn public_server(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13])?;
    server(builder.with_no_client_auth(), identity)
}

/// A server for clients with a certificate of an authority.
pub fn private_server(
    identity: &Identity,
    clients: RootCertStore,
) -> Result<Arc<ServerConfig>, Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(clients), provider())
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13])?;
    server(builder.with_client_cert_verifier(verifier), identity)
}

fn server(
    builder: ConfigBuilder<ServerConfig, WantsServerCert>,
    identity: &Identity,
) -> Result<Arc<ServerConfig>, Error> {
    let chain = vec![identity.certificate().clone()];
    let mut config = builder.with_single_cert(chain, identity.key())?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// A client of the server with this certificate.
pub fn client(identity: &Identity, server: Fingerprint) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let verifier = PinnedCertificate {
        server,
        algorithms: provider.signature_verification_algorithms,
    };
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&TLS13])?;
    let chain = vec![identity.certificate().clone()];
    let mut config = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, identity.key())?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(Arc::new(config))
}

/// Accepts one certificate, whatever its names and times. The server proves that it has the key.
#[derive(Debug)]
struct PinnedCertificate {
    server: Fingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if Fingerprint::of(end_entity) == self.server {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not used".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::Ipv4Addr;

    use hostloop_report::clock::now_s;
    use rustls::client::WebPkiServerVerifier;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::tls::certificates::{Authority, roots};

    /// Sends a byte from the client to the server and back.
    async fn exchange(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> io::Result<()> {
        let (near, far) = duplex(64 * 1024);
        let served = async {
            let mut stream = TlsAcceptor::from(server).accept(far).await?;
            let byte = stream.read_u8().await?;
            stream.write_u8(byte).await?;
            stream.flush().await
        };
        let called = async {
            let host = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
            let mut stream = TlsConnector::from(client).connect(host, near).await?;
            stream.write_u8(7).await?;
            stream.flush().await?;
            assert_eq!(stream.read_u8().await?, 7);
            Ok::<(), io::Error>(())
        };
        tokio::try_join!(served, called).map(|_| ())
    }

    #[tokio::test]
    async fn node_and_controller_know_each_other() {
        let (ours, theirs) = (
            Authority::new(now_s()).unwrap(),
            Authority::new(now_s()).unwrap(),
        );
        let node = Identity::self_signed(now_s()).unwrap();
        let other_node = Identity::self_signed(now_s()).unwrap();
        let controller = ours.client(now_s()).unwrap();
        let stranger = theirs.client(now_s()).unwrap();
        let host = ["127.0.0.1".to_owned()];
        let server_certificate = ours.server(&host, now_s()).unwrap();
        for (what, server, caller, pinned, connected) in [
            ("all is right", &node, &controller, &node, true),
            (
                "another node answers",
                &other_node,
                &controller,
                &node,
                false,
            ),
            ("a stranger calls", &node, &stranger, &node, false),
            ("another node calls", &node, &other_node, &node, false),
            (
                "a server's certificate calls",
                &node,
                &server_certificate,
                &node,
                false,
            ),
        ] {
            let roots = roots(ours.pem()).unwrap();
            let server = private_server(server, roots).unwrap();
            let client = client(caller, pinned.fingerprint()).unwrap();
            let exchanged = exchange(server, client).await;
            assert_eq!(exchanged.is_ok(), connected, "{what}: {exchanged:?}");
        }
    }

    #[tokio::test]
    async fn backup_tools_trust_the_authority() {
        let authority = Authority::new(now_s()).unwrap();
        let other = Authority::new(now_s()).unwrap();
        for (hosts, trusted, connected) in [
            ("127.0.0.1", &authority, true),
            ("127.0.0.1", &other, false),
            ("127.0.0.2", &authority, false),
        ] {
            let identity = authority.server(&[hosts.to_owned()], now_s()).unwrap();
            let roots = Arc::new(roots(trusted.pem()).unwrap());
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider())
                .build()
                .unwrap();
            let client = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&TLS13])
                .unwrap()
                .with_webpki_verifier(verifier)
                .with_no_client_auth();
            let server = public_server(&identity).unwrap();
            let exchanged = exchange(server, Arc::new(client)).await;
            assert_eq!(exchanged.is_ok(), connected, "{hosts}: {exchanged:?}");
        }
    }
}
