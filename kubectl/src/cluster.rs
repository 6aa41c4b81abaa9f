//! The connection to the cluster, with the person's kubeconfig and rights.

use std::path::PathBuf;

use hostloop_report::driver_name;
use hostloop_report::flags::DRIVER_NAME;
use http::Uri;
use kube::config::{self, AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};

use super::api::{Kind, Namespaced};

mod proxy_settings;

use proxy_settings::{ProxyError, ProxySettings};

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

    /// The user to act as; --as-group adds groups
    #[arg(long = "as", value_name = "USER", global = true)]
    pub as_user: Option<String>,

    /// A group to act as, with --as; repeat the flag for several
    #[arg(long = "as-group", value_name = "GROUP", global = true)]
    pub as_groups: Vec<String>,

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
        value_parser = driver_name::parse,
        global = true
    )]
    pub driver_name: String,
}

impl ClusterArgs {
    /// Sets whom the requests act as. What the flags do not say stays as in the kubeconfig.
    fn impersonate(&self, person: &mut AuthInfo) -> Result<(), Error> {
        let Some(user) = &self.as_user else {
            return if self.as_groups.is_empty() {
                Ok(())
            } else {
                Err(Error::GroupsAlone)
            };
        };
        person.impersonate = Some(user.clone());
        person.impersonate_groups =
            Some(self.as_groups.clone()).filter(|groups| !groups.is_empty());
        Ok(())
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig can't be read.
    #[error("the kubeconfig can't be read: {0}; set --kubeconfig or KUBECONFIG, and --context")]
    Kubeconfig(#[source] KubeconfigError),
    /// Groups without a user.
    #[error("--as-group: the API server takes groups with a user alone; add --as")]
    GroupsAlone,
    /// A proxy can't be used.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// kube reads NO_PROXY, too, and takes no empty entry.
    #[error(
        "NO_PROXY can't be read, or the proxy has no host: take empty entries and a comma at the \
         end out of NO_PROXY, and set a proxy as http://proxy.example.com:3128"
    )]
    NoProxyVariable,
    /// What logs in is none of the providers that the client has.
    #[error(
        "the user in the kubeconfig logs in by the auth provider {0}, which kubectl no longer has \
         either: let an exec program log in, such as gke-gcloud-auth-plugin or kubelogin"
    )]
    AuthProvider(String),
    /// The kubeconfig can't be used.
    #[error("the kubeconfig can't be used: {0}; check its certificates and credentials")]
    Client(#[from] kube::Error),
}

impl From<KubeconfigError> for Error {
    /// What kube says of a proxy is not shown: it has the setting, which may have a password.
    fn from(error: KubeconfigError) -> Self {
        match error {
            KubeconfigError::ParseProxyUrl(_) => {
                ProxyError::NotAUrl("HTTPS_PROXY, or proxy-url in the kubeconfig,").into()
            }
            KubeconfigError::ParseNoProxy(_) => Error::NoProxyVariable,
            error => Error::Kubeconfig(error),
        }
    }
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
        Cluster::of_kubeconfig(args, file, ProxySettings::of_environment()).await
    }

    /// Connects as this kubeconfig and the environment's settings of proxies say.
    async fn of_kubeconfig(
        args: &ClusterArgs,
        file: Kubeconfig,
        environment: ProxySettings,
    ) -> Result<Cluster, Error> {
        let context = args
            .context
            .clone()
            .or_else(|| file.current_context.clone());
        // Before kube, which reads the proxy, too, and says less of what is wrong with it.
        let proxy = match cluster_of(&file, context.as_deref()) {
            Some(cluster) => proxy_of(cluster, environment)?,
            None => None,
        };
        let options = KubeConfigOptions {
            context: context.clone(),
            ..Default::default()
        };
        let mut config = Config::from_custom_kubeconfig(file, &options).await?;
        config.proxy_url = proxy;
        if let Some(provider) = unknown_provider(&config.auth_info) {
            return Err(Error::AuthProvider(provider.to_owned()));
        }
        args.impersonate(&mut config.auth_info)?;
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

    /// The objects of a kind in the namespace of the command.
    pub(super) fn own<K: Namespaced>(&self) -> Api<K> {
        self.namespaced(Some(&self.namespace))
    }

    /// The objects of a kind in the namespace of hostloop's pods.
    pub(super) fn system<K: Namespaced>(&self) -> Api<K> {
        self.namespaced(Some(&self.system_namespace))
    }
}

/// The cluster of the context, as the kubeconfig has it.
fn cluster_of<'a>(file: &'a Kubeconfig, context: Option<&str>) -> Option<&'a config::Cluster> {
    let context = file
        .contexts
        .iter()
        .find(|named| Some(&*named.name) == context)?;
    let name = &context.context.as_ref()?.cluster;
    let cluster = file.clusters.iter().find(|named| named.name == *name)?;
    cluster.cluster.as_ref()
}

/// The proxy of a cluster's server. A server that can't be read is left to kube.
fn proxy_of(
    cluster: &config::Cluster,
    environment: ProxySettings,
) -> Result<Option<Uri>, ProxyError> {
    let server = cluster.server.as_ref();
    let Some(server) = server.and_then(|server| server.parse().ok()) else {
        return Ok(None);
    };
    let settings = ProxySettings {
        proxy_url: cluster.proxy_url.clone().unwrap_or_default(),
        ..environment
    };
    settings.proxy_of(&server)
}

/// The auth provider, if the client can't log in by it. That of Google is known where a program
/// or a token without an end stands in the kubeconfig.
fn unknown_provider(person: &AuthInfo) -> Option<&str> {
    let provider = person.auth_provider.as_ref()?;
    let is_known = match &*provider.name {
        "oidc" => true,
        "gcp" => ["cmd-path", "id-token"]
            .iter()
            .any(|key| provider.config.contains_key(*key)),
        _ => false,
    };
    (!is_known).then_some(&*provider.name)
}

#[cfg(test)]
mod tests;
