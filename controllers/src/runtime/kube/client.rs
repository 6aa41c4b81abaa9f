//! Making a client of the API server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::received::Received;
use crate::runtime::Metrics;

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

/// A client. It makes connections as they are needed: that there is one says nothing of the
/// server. It never tries again by itself: its callers have queues for that, and deadlines.
pub async fn connect(options: &ClientOptions) -> Result<Client, ClientError> {
    Ok(Client::try_from(config(options).await?)?)
}

/// The same, and counts what the server sends.
pub async fn connect_counted(
    options: &ClientOptions,
    metrics: Arc<Metrics>,
) -> Result<Client, ClientError> {
    let builder = ClientBuilder::try_from(config(options).await?)?;
    Ok(builder.with_layer(&Received(metrics)).build())
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
