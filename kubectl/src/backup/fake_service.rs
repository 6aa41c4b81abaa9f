//! A service of changed blocks for tests, over TLS on the loopback interface.

use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use hostloop_api_objects::snapshot_metadata::{
    SnapshotMetadataService, SnapshotMetadataServiceSpec,
};
use hostloop_fake_api::FakeApi;
use hostloop_proto::snapshot_metadata::snapshot_metadata_server::{
    SnapshotMetadata, SnapshotMetadataServer,
};
use hostloop_proto::snapshot_metadata::{
    BlockMetadata, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
    GetMetadataDeltaRequest, GetMetadataDeltaResponse,
};
use k8s_openapi::ByteString;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// The size of the volume.
pub(super) const SIZE: i64 = 1 << 20;
/// A token that the API server gives.
const TOKEN: &str = "token";

/// What the service lists, and what it was asked. Clones share it.
#[derive(Clone, Default)]
pub(super) struct FakeService(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Offset and size of each block, for both calls.
    blocks: Vec<(i64, i64)>,
    /// True if the next stream breaks off behind its first block.
    breaks_off: bool,
    /// The base that the service does not have any more.
    gone: Option<String>,
    /// The calls so far.
    calls: Vec<String>,
}

type Blocks = BoxStream<'static, Result<Vec<BlockMetadata>, Status>>;

impl FakeService {
    /// Serves, and gives the API server what clients find the service by.
    pub(super) async fn start(api: &FakeApi) -> FakeService {
        let service = FakeService::default();
        let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let inner = plain.local_addr().unwrap();
        let server = Server::builder().add_service(SnapshotMetadataServer::new(service.clone()));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(plain)));

        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust the certificate hangs up.
                    let Ok(mut near) = acceptor.accept(stream).await else {
                        return;
                    };
                    let mut far = TcpStream::connect(inner).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        publish(api, &format!("localhost:{port}"), &made.cert.pem());
        api.answer(
            "/api/v1/namespaces/demo/serviceaccounts/backup/token",
            201,
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                "metadata": {}, "spec": {"audiences": ["a"]}, "status": {"token": TOKEN}}),
        );
        service
    }

    pub(super) fn lists(&self, blocks: &[(i64, i64)]) {
        self.0.lock().blocks = blocks.to_vec();
    }

    pub(super) fn breaks_off(&self) {
        self.0.lock().breaks_off = true;
    }

    /// Forgets a snapshot.
    pub(super) fn forgets(&self, handle: &str) {
        self.0.lock().gone = Some(handle.to_owned());
    }

    /// The calls since the last look.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().calls)
    }

    fn answer(&self, call: String, token: &str, from: i64) -> Result<Blocks, Status> {
        let mut state = self.0.lock();
        state.calls.push(call);
        if token != TOKEN {
            return Err(Status::unauthenticated("another token"));
        }
        let blocks = state.blocks.iter();
        let messages = blocks.filter(|(offset, size)| offset + size > from).map(
            |(byte_offset, size_bytes)| {
                Ok(vec![BlockMetadata {
                    byte_offset: *byte_offset,
                    size_bytes: *size_bytes,
                }])
            },
        );
        let mut messages: Vec<Result<_, Status>> = messages.collect();
        if std::mem::take(&mut state.breaks_off) {
            messages.truncate(1);
            messages.push(Err(Status::unavailable("the stream is cut")));
        } else if messages.is_empty() {
            messages.push(Ok(Vec::new()));
        }
        Ok(stream::iter(messages).boxed())
    }
}

/// Writes the object that clients find the service by.
pub(super) fn publish(api: &FakeApi, address: &str, authority: &str) {
    api.put(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "snapshotmetadataservices.cbt.storage.k8s.io"},
        "spec": {
            "group": "cbt.storage.k8s.io", "scope": "Cluster",
            "names": {"kind": "SnapshotMetadataService", "plural": "snapshotmetadataservices"},
            "versions": [{"name": "v1beta1", "served": true}],
        },
    }));
    let spec = SnapshotMetadataServiceSpec {
        address: address.to_owned(),
        audience: "a".to_owned(),
        ca_cert: ByteString(authority.as_bytes().to_vec()),
    };
    let object = SnapshotMetadataService::new("hostloop.csi.dev", spec);
    api.put(serde_json::to_value(object).unwrap());
}

#[tonic::async_trait]
impl SnapshotMetadata for FakeService {
    type GetMetadataAllocatedStream =
        BoxStream<'static, Result<GetMetadataAllocatedResponse, Status>>;
    type GetMetadataDeltaStream = BoxStream<'static, Result<GetMetadataDeltaResponse, Status>>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let request = request.into_inner();
        let from = request.starting_offset;
        let call = format!(
            "{}/{} from {from}",
            request.namespace, request.snapshot_name
        );
        let blocks = self.answer(call, &request.security_token, from)?;
        let answers = blocks.map_ok(|block_metadata| GetMetadataAllocatedResponse {
            block_metadata_type: 2,
            volume_capacity_bytes: SIZE,
            block_metadata,
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let request = request.into_inner();
        let (base, from) = (request.base_snapshot_id, request.starting_offset);
        if self.0.lock().gone.as_ref() == Some(&base) {
            return Err(Status::not_found(format!("snapshot {base} is gone")));
        }
        let (namespace, snapshot) = (request.namespace, request.target_snapshot_name);
        let call = format!("{namespace}/{snapshot} since {base} from {from}");
        let blocks = self.answer(call, &request.security_token, from)?;
        let answers = blocks.map_ok(|block_metadata| GetMetadataDeltaResponse {
            block_metadata_type: 2,
            volume_capacity_bytes: SIZE,
            block_metadata,
        });
        Ok(Response::new(answers.boxed()))
    }
}
