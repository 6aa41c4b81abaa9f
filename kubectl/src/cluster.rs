//! The connection to the cluster, with the person's kubeconfig and rights.

use std::path::PathBuf;

use hostloop_report::flags::DRIVER_NAME;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};

use super::api::{Kind, Namespaced};

/// Flags about the cluster, with kubectl's names.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// The kubeconfig file [default: KUBECONFIG, or ~/.kube/config]
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,

    /// The context in the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,

    /// The namespace of the claim [default: the context's]
    #[arg(short, long, value_name = "NAMESPACE", global = true)]
    pub namespace: Option<String>,

    /// The namespace that hostloop's pods are in
    #[arg(
        long,
        env = "HOSTLOOP_SYSTEM_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "hostloop",
        global = true
    )]
    pub system_namespace: String,

    /// The driver's name in Kubernetes
    #[arg(
        long = "driver-name",
        env = "HOSTLOOP_DRIVERNAME",
        value_name = "NAME",
        default_value = DRIVER_NAME,
        global = true
    )]
    pub driver_name: String,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig can't be read.
    #[error("the kubeconfig can't be read: {0}; set --kubeconfig or KUBECONFIG, and --context")]
    Kubeconfig(#[from] KubeconfigError),
    /// The kubeconfig can't be used.
    #[error("the kubeconfig can't be used: {0}; check its certificates and credentials")]
    Client(#[from] kube::Error),
}

/// A cluster, and the names that the commands work with.
#[derive(Clone)]
pub struct Cluster {
    /// The client with the person's rights.
    pub client: Client,
    /// The name of the context, if the kubeconfig has one.
    pub context: Option<String>,
    /// The namespace of claims.
    pub namespace: String,
    /// The namespace of hostloop's pods.
    pub system_namespace: String,
    pub driver_name: String,
}

impl Cluster {
    /// Reads the kubeconfig. Success proves nothing about the server: the first request connects.
    #[expect(clippy::disallowed_methods, reason = "a person's command")]
    pub async fn connect(args: &ClusterArgs) -> Result<Cluster, Error> {
        let file = match &args.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)?,
            None => Kubeconfig::read()?,
        };
        let options = KubeConfigOptions {
            context: args.context.clone(),
            ..Default::default()
        };
        let context = args
            .context
            .clone()
            .or_else(|| file.current_context.clone());
        let config = Config::from_custom_kubeconfig(file, &options).await?;
        Ok(Cluster {
            namespace: args
                .namespace
                .clone()
                .unwrap_or_else(|| config.default_namespace.clone()),
            client: Client::try_from(config)?,
            context,
            system_namespace: args.system_namespace.clone(),
            driver_name: args.driver_name.clone(),
        })
    }

    /// The objects of a kind in the whole cluster.
    pub(super) fn all<K: Kind>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// The objects of a kind in a namespace, or in all.
    pub(super) fn namespaced<K: Namespaced>(&self, namespace: Option<&str>) -> Api<K> {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => self.all(),
        }
    }

    /// The objects of a kind in the namespace of hostloop's pods.
    pub(super) fn system<K: Namespaced>(&self) -> Api<K> {
        self.namespaced(Some(&self.system_namespace))
    }
}
