//! Creates a client for the API server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tonic::codegen::Bytes;
use tonic::codegen::http::{Request, Response};
use tower::layer::layer_fn;
use tower::util::option_layer;
use tower::{BoxError, Layer, Service, ServiceExt};

use super::bytes_received::Counting;
use super::trim::{KeptFields, Trimming};
use crate::metrics::Metrics;

type HttpAnswer = Response<hyper::body::Incoming>;

/// Why no client could be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("kubeconfig {path}: {source}")]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: KubeconfigError,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error("there is neither a service account of a pod nor a kubeconfig: {0}")]
    Nowhere(#[from] kube::config::InferConfigError),
    #[error("cannot create a client for the API server: {0}")]
    Client(#[from] kube::Error),
}

/// The read buffer of each connection in bytes. Without a limit, the buffers of busy watches grow
/// to half a MiB each, and received data stays in pieces of them.
const READ_BUFFER: usize = 16 * 1024;

/// Creates a client (see [`over`]). By default, the pod's service account or the user's own
/// kubeconfig applies.
///
/// The client connects on the first request, so success proves nothing about the server. It never
/// retries: its callers have queues and deadlines for that.
pub(crate) async fn connect(
    kubeconfig: Option<&Path>,
    metrics: Arc<Metrics>,
    kept: &'static [KeptFields],
) -> Result<Client, ClientError> {
    Ok(client(config(kubeconfig).await?, metrics, kept)?)
}

/// Creates a client over these connections. It counts the bytes that the server sends, and drops
/// what is not in `kept` of the kinds that are.
pub(crate) fn over<S, B>(
    connections: ClientBuilder<S>,
    metrics: Arc<Metrics>,
    kept: &'static [KeptFields],
) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    connections
        .with_layer(&layer_fn(|inner| Counting {
            inner,
            metrics: metrics.clone(),
        }))
        .with_layer(&layer_fn(|inner| Trimming { inner, kinds: kept }))
        .build()
}

/// Leaves proxies and credential plugins to kube's own client.
fn client(
    config: Config,
    metrics: Arc<Metrics>,
    kept: &'static [KeptFields],
) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() || config.auth_info.exec.is_some() {
        return Ok(over(ClientBuilder::try_from(config)?, metrics, kept));
    }
    let service = config.extra_headers_layer()?.layer(connections(&config)?);
    let service = option_layer(config.auth_layer()?).layer(service);
    let service = config.base_uri_layer().layer(service);
    Ok(over(
        ClientBuilder::new(service, config.default_namespace),
        metrics,
        kept,
    ))
}

/// Builds the connections as kube does, with two differences. They limit the buffer size, which
/// kube cannot configure. They omit the span around each request, because requests are counted and
/// logged elsewhere.
fn connections(
    config: &Config,
) -> Result<
    impl Service<Request<Body>, Response = HttpAnswer, Error = BoxError, Future: Send>
    + Clone
    + Send
    + use<>,
    kube::Error,
> {
    let mut connector = TimeoutConnector::new(config.rustls_https_connector()?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let connections = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .http1_max_buf_size(READ_BUFFER)
        .build(connector);
    Ok(connections.map_err(BoxError::from))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the pod's service account, or a person's choice"
)]
async fn config(kubeconfig: Option<&Path>) -> Result<Config, ClientError> {
    let mut config = match kubeconfig {
        None => Config::infer().await?,
        Some(path) => config_from(path)
            .await
            .map_err(|source| ClientError::Kubeconfig {
                path: path.to_owned(),
                source,
            })?,
    };
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    Ok(config)
}

async fn config_from(kubeconfig: &Path) -> Result<Config, KubeconfigError> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await
}
