//! Making a client of the API server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body::Body as HttpBody;
use hyper_timeout::TimeoutConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tonic::codegen::Bytes;
use tonic::codegen::http::{Request, Response};
use tower::util::option_layer;
use tower::{BoxError, Layer, Service, ServiceExt};

use super::bytes_received::Received;
use crate::runtime::Metrics;

type Answer = Response<hyper::body::Incoming>;

/// How the server is reached.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// A kubeconfig file; without it the service account of the pod, or the user's own kubeconfig.
    pub kubeconfig: Option<PathBuf>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig can't be used.
    #[error("kubeconfig {path}: {source}")]
    Kubeconfig {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error("no cluster to work in: {0}")]
    Nowhere(#[from] kube::config::InferConfigError),
    /// The client can't be made of it.
    #[error("a client of the API server: {0}")]
    Client(#[from] kube::Error),
}

/// What the server sends is read into at most so much of memory at once, of each connection. Without
/// a limit, the buffers of busy watches grow to half a MiB each, and what comes is kept in pieces of
/// them.
const READ_BUFFER: usize = 16 * 1024;

/// A client. It makes connections as they are needed: that there is one says nothing of the
/// server. It never tries again by itself: its callers have queues for that, and deadlines.
pub async fn connect(options: &ClientOptions) -> Result<Client, ClientError> {
    Ok(client(config(options).await?, None)?)
}

/// The same, and counts what the server sends.
pub async fn connect_counted(
    options: &ClientOptions,
    metrics: Arc<Metrics>,
) -> Result<Client, ClientError> {
    Ok(client(config(options).await?, Some(Received(metrics)))?)
}

/// What is reached through a proxy, or by credentials that a program makes, is kube's own affair.
fn client(config: Config, counted: Option<Received>) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() || config.auth_info.exec.is_some() {
        return Ok(built(ClientBuilder::try_from(config)?, counted));
    }
    let service = config.extra_headers_layer()?.layer(connections(&config)?);
    let service = option_layer(config.auth_layer()?).layer(service);
    let service = config.base_uri_layer().layer(service);
    let builder = ClientBuilder::new(service, config.default_namespace);
    Ok(built(builder, counted))
}

/// As kube makes them, but for the size of their buffers, which it has no word for, and without a
/// span around each request: requests are counted and told of elsewhere.
fn connections(
    config: &Config,
) -> Result<
    impl Service<Request<Body>, Response = Answer, Error = BoxError, Future: Send>
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

fn built<S, B>(builder: ClientBuilder<S>, counted: Option<Received>) -> Client
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    match counted {
        Some(counted) => builder.with_layer(&counted).build(),
        None => builder.build(),
    }
}

async fn config(options: &ClientOptions) -> Result<Config, ClientError> {
    let mut config = match &options.kubeconfig {
        None => Config::infer().await?,
        Some(path) => {
            let failed = |source| ClientError::Kubeconfig {
                path: path.clone(),
                source,
            };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(failed)?
        }
    };
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    Ok(config)
}
