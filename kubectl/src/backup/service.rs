//! The service of changed blocks, as any backup tool asks it: at the address and with the authority of
//! the driver's SnapshotMetadataService, and with a token for its audience.
//!
//! The address is one of the cluster's network, where this machine is not: the way there is a forwarded
//! port of a pod of the Service that it names. The certificate is checked for the address all the same.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use hostloop_api_objects::snapshot_metadata::{
    SnapshotMetadataService, SnapshotMetadataServiceSpec,
};
use hostloop_proto::snapshot_metadata::snapshot_metadata_client::SnapshotMetadataClient;
use hostloop_proto::snapshot_metadata::{
    BlockMetadata, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
};
use hostloop_report::error_chain;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};

use super::error::ServiceError;
use super::ranges::Listing;
use crate::Cluster;
use crate::api::{self, ApiError, Call, timely};
use crate::progress_line::ProgressLine;
use crate::volume_objects::phase;

/// How long a token is good for, in seconds: the least that the API server gives.
const TOKEN_LIFE: i64 = 600;
/// How long it may take to connect, and to shake hands.
const CONNECT: Duration = Duration::from_secs(10);
/// The pause before a call is made again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the controller may take to write the driver's SnapshotMetadataService. It does so within
/// seconds of its start, or once the lease of an earlier one has ended.
const PUBLICATION: Duration = Duration::from_secs(30);

/// Who asks the service, and for how long.
pub(super) struct Asker<'a> {
    pub(super) cluster: &'a Cluster,
    /// The account of the tokens, as `NAME` or `NAMESPACE/NAME`.
    pub(super) account: &'a str,
    /// How long it asks again without an answer.
    pub(super) patience: Duration,
}

/// What is asked of the service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    pub(super) namespace: &'a str,
    /// The name of the VolumeSnapshot.
    pub(super) snapshot: &'a str,
    /// The handle of the snapshot to compare with; without it, all that is allocated is asked for.
    pub(super) base: Option<&'a str>,
}

/// Messages of either call: the volume's size and blocks.
type Messages = BoxStream<'static, Result<(i64, Vec<BlockMetadata>), Status>>;

impl Asker<'_> {
    /// Waits until the driver's SnapshotMetadataService is there. The controller writes it, and an
    /// installation may end before that.
    pub(super) async fn until_published(
        &self,
        progress: &mut ProgressLine,
    ) -> Result<(), ServiceError> {
        let began = Instant::now();
        let longest = self.patience.min(PUBLICATION);
        loop {
            match self.service().await {
                Err(ServiceError::NoService(driver)) if began.elapsed() < longest => {
                    progress.show(&format!(
                        "waiting for the controller to write SnapshotMetadataService {driver}"
                    ));
                }
                answer => return answer.map(drop),
            }
            sleep(PAUSE).await;
        }
    }

    /// Lists what the question asks for. A call that ends early is made again, behind the last range
    /// and with another token.
    pub(super) async fn list(&self, question: Question<'_>) -> Result<Listing, ServiceError> {
        let mut listing = Listing::default();
        let mut last = Instant::now();
        loop {
            let before = listing.end;
            let error = match self.read_on(question, &mut listing).await {
                Err(error) if !listing.is_at_the_end() => error,
                _ => return Ok(listing),
            };
            if listing.end > before {
                last = Instant::now();
            }
            if !may_pass(&error) || last.elapsed() >= self.patience {
                return Err(error);
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads one stream to its end.
    async fn read_on(
        &self,
        question: Question<'_>,
        listing: &mut Listing,
    ) -> Result<(), ServiceError> {
        let service = self.service().await?;
        let token = self.token(&service.audience).await?;
        let mut client = self.client(&service).await?;
        let opened = open(&mut client, question, token, listing.end);
        let mut messages = self.patiently(opened).await?;
        loop {
            let next = async { messages.try_next().await.map_err(ServiceError::from) };
            let Some((size, blocks)) = self.patiently(next).await? else {
                return Ok(());
            };
            listing.add(size, &blocks).map_err(ServiceError::Answer)?;
        }
    }

    /// Waits for an answer of the service. A connection can be open without one for good.
    async fn patiently<T>(
        &self,
        answer: impl Future<Output = Result<T, ServiceError>>,
    ) -> Result<T, ServiceError> {
        let longest = self.patience.max(CONNECT);
        match timeout(longest, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(ServiceError::Silent(longest.as_secs())),
        }
    }

    /// What the driver's object says of the service.
    async fn service(&self) -> Result<SnapshotMetadataServiceSpec, ServiceError> {
        let driver = &self.cluster.driver_name;
        let services: Api<SnapshotMetadataService> = self.cluster.all();
        let service = api::get(&services, driver).await?;
        let service = service.ok_or_else(|| ServiceError::NoService(driver.clone()))?;
        Ok(service.spec)
    }

    async fn token(&self, audience: &str) -> Result<String, ServiceError> {
        let usual = (self.cluster.namespace.as_str(), self.account);
        let (namespace, account) = self.account.split_once('/').unwrap_or(usual);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![audience.to_owned()]),
                expiration_seconds: Some(TOKEN_LIFE),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = self.cluster.namespaced(Some(namespace));
        let call = Call::new("create", "serviceaccounts/token", Some(namespace), account);
        let params = PostParams::default();
        let sent = accounts.create_token_request(account, &params, &request);
        let answer = match timely(call, sent).await {
            Err(ApiError::NotFound { .. }) => {
                return Err(ServiceError::NoAccount {
                    namespace: namespace.to_owned(),
                    account: account.to_owned(),
                });
            }
            answer => answer?,
        };
        let token = answer.status.and_then(|status| status.token);
        token.ok_or_else(|| ServiceError::NoToken(account.to_owned()))
    }

    /// Connects to the address, or through a pod of the Service that it names.
    async fn client(
        &self,
        service: &SnapshotMetadataServiceSpec,
    ) -> Result<SnapshotMetadataClient<Channel>, ServiceError> {
        let address = &service.address;
        let wrong = ServiceError::Address(address.clone());
        let Some((host, port)) = host_and_port(address) else {
            return Err(wrong);
        };
        let Ok(name) = ServerName::try_from(host.to_owned()) else {
            return Err(wrong);
        };
        let tls = TlsConnector::from(tls(&service.ca_cert.0)?);
        let Some((service, namespace)) = service_of(host) else {
            let stream = timeout(CONNECT, TcpStream::connect((host, port))).await;
            let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let stream = stream.map_err(|error| unreachable(address, &error))?;
            return shake_hands(stream, &tls, name, address).await;
        };
        let mut last = ServiceError::NoPod {
            namespace: namespace.to_owned(),
            name: service.to_owned(),
        };
        // Only the leader of the controllers answers.
        for (pod, port) in self.pods_of(namespace, service, port).await? {
            match self
                .through(namespace, &pod, port, &tls, name.clone())
                .await
            {
                Ok(client) => return Ok(client),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The running pods of a Service, and the port of each that this port of the Service is for.
    async fn pods_of(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<Vec<(String, u16)>, ServiceError> {
        let services: Api<Service> = self.cluster.namespaced(Some(namespace));
        let Some(service) = api::get(&services, name).await? else {
            return Ok(Vec::new());
        };
        let spec = service.spec.unwrap_or_default();
        let labels = labels(&spec.selector.clone().unwrap_or_default());
        if labels.is_empty() {
            return Ok(Vec::new());
        }
        let ports = spec.ports.unwrap_or_default();
        let target = ports
            .into_iter()
            .find(|one| one.port == i32::from(port))
            .and_then(|one| one.target_port);
        let target = target.unwrap_or(IntOrString::Int(i32::from(port)));
        let pods: Api<Pod> = self.cluster.namespaced(Some(namespace));
        let pods = api::list(&pods, ListParams::default().labels(&labels)).await?;
        Ok(pods
            .iter()
            .filter(|pod| is_running(pod))
            .filter_map(|pod| Some((pod.name_any(), target_port(pod, &target)?)))
            .collect())
    }

    /// A connection through a forwarded port of a pod.
    async fn through(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
        tls: &TlsConnector,
        name: ServerName<'static>,
    ) -> Result<SnapshotMetadataClient<Channel>, ServiceError> {
        let to = format!("pod {namespace}/{pod}, port {port}");
        let pods: Api<Pod> = self.cluster.namespaced(Some(namespace));
        let call = Call::new("create", "pods/portforward", Some(namespace), pod);
        let mut forwarded = timely(call, pods.portforward(pod, &[port])).await?;
        let Some(stream) = forwarded.take_stream(port) else {
            return Err(ServiceError::Connect {
                to,
                why: "the port is not forwarded".to_owned(),
            });
        };
        shake_hands(stream, tls, name, &to).await
    }
}

/// Opens the stream of a call, from this offset on.
async fn open(
    client: &mut SnapshotMetadataClient<Channel>,
    question: Question<'_>,
    token: String,
    from: u64,
) -> Result<Messages, ServiceError> {
    let starting_offset = i64::try_from(from).unwrap_or(i64::MAX);
    let (namespace, snapshot) = (question.namespace.to_owned(), question.snapshot.to_owned());
    Ok(match question.base {
        None => {
            let request = GetMetadataAllocatedRequest {
                security_token: token,
                namespace,
                snapshot_name: snapshot,
                starting_offset,
                max_results: 0,
            };
            let answer = client.get_metadata_allocated(request).await?;
            let messages = answer.into_inner();
            messages
                .map_ok(|one| (one.volume_capacity_bytes, one.block_metadata))
                .boxed()
        }
        Some(base) => {
            let request = GetMetadataDeltaRequest {
                security_token: token,
                namespace,
                base_snapshot_id: base.to_owned(),
                target_snapshot_name: snapshot,
                starting_offset,
                max_results: 0,
            };
            let answer = client.get_metadata_delta(request).await?;
            let messages = answer.into_inner();
            messages
                .map_ok(|one| (one.volume_capacity_bytes, one.block_metadata))
                .boxed()
        }
    })
}

/// True if another call may be answered.
fn may_pass(error: &ServiceError) -> bool {
    match error {
        ServiceError::Call(status) => {
            let is_broken = std::error::Error::source(status).is_some();
            is_broken
                || matches!(
                    status.code(),
                    Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted
                )
        }
        ServiceError::Api(error) => error.is_transient(),
        ServiceError::Connect { .. } | ServiceError::NoPod { .. } | ServiceError::Silent(_) => true,
        _ => false,
    }
}

/// True if the service can't compare with the base, may not, or takes too long: then all that is
/// allocated is to be copied. If the snapshot is what it refuses, it refuses that, too. A comparison by
/// content lists nothing while all is equal, and so can't be resumed behind the last range.
pub(super) fn needs_full(error: &ServiceError) -> bool {
    match error {
        ServiceError::Call(status) => matches!(
            status.code(),
            Code::NotFound
                | Code::FailedPrecondition
                | Code::PermissionDenied
                | Code::InvalidArgument
                | Code::DeadlineExceeded
        ),
        ServiceError::Silent(_) => true,
        _ => false,
    }
}

/// Speaks TLS over a stream, and gRPC over that.
async fn shake_hands<S>(
    stream: S,
    tls: &TlsConnector,
    name: ServerName<'static>,
    to: &str,
) -> Result<SnapshotMetadataClient<Channel>, ServiceError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = timeout(CONNECT, tls.connect(name, stream)).await;
    let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = stream.map_err(|error| unreachable(to, &error))?;
    let mut only = Some(TokioIo::new(stream));
    // Another call makes another connection.
    let connector = tower::service_fn(move |_: Uri| {
        let stream = only.take();
        async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    let endpoint = Endpoint::from_static("http://service");
    let channel = timeout(CONNECT, endpoint.connect_with_connector(connector)).await;
    match channel {
        Ok(Ok(channel)) => Ok(SnapshotMetadataClient::new(channel)),
        Ok(Err(error)) => Err(unreachable(to, &error)),
        Err(_) => Err(unreachable(to, &io::Error::from(io::ErrorKind::TimedOut))),
    }
}

fn unreachable(to: &str, error: &dyn std::error::Error) -> ServiceError {
    ServiceError::Connect {
        to: to.to_owned(),
        why: error_chain(error),
    }
}

/// A client that trusts these authorities alone, as PEM.
fn tls(authorities: &[u8]) -> Result<Arc<ClientConfig>, ServiceError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        let certificate =
            certificate.map_err(|error| ServiceError::Authority(error.to_string()))?;
        let added = roots.add(certificate);
        added.map_err(|error| ServiceError::Authority(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| ServiceError::Authority(error.to_string()))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// The parts of an address. The host of one of IPv6 stands in brackets.
fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    Some((bare.unwrap_or(host), port.parse().ok()?))
}

/// The name and the namespace of the Service that a host names, if it names one.
fn service_of(host: &str) -> Option<(&str, &str)> {
    let (name, rest) = host.split_once('.')?;
    let (namespace, rest) = rest.split_once('.')?;
    (rest == "svc" || rest.starts_with("svc.")).then_some((name, namespace))
}

/// The selector of a list.
fn labels(labels: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(",")
}

fn is_running(pod: &Pod) -> bool {
    phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none()
}

/// The port of a pod that a Service names by its number or by its name.
fn target_port(pod: &Pod, target: &IntOrString) -> Option<u16> {
    let number = match target {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let containers = &pod.spec.as_ref()?.containers;
            let mut ports = containers.iter().flat_map(|one| one.ports.iter().flatten());
            ports
                .find(|port| port.name.as_ref() == Some(name))?
                .container_port
        }
    };
    u16::try_from(number).ok()
}

#[cfg(test)]
mod tests;
