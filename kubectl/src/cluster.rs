//! The connection to the cluster, with the person's kubeconfig and rights.

use std::net::IpAddr;
use std::path::PathBuf;

use hostloop_report::driver_name;
use hostloop_report::flags::DRIVER_NAME;
use http::Uri;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
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
        person.impersonate_groups = Some(self.as_groups.clone()).filter(|all| !all.is_empty());
        Ok(())
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig can't be read.
    #[error("the kubeconfig can't be read: {0}; set --kubeconfig or KUBECONFIG, and --context")]
    Kubeconfig(#[from] KubeconfigError),
    /// Groups without a user.
    #[error("--as-group: the API server takes groups with a user alone; add --as")]
    GroupsAlone,
    /// A proxy leads to the server.
    #[error(
        "the kubeconfig (proxy-url) or HTTPS_PROXY names the proxy {0}, and this program uses none; \
         take a way to the API server without one"
    )]
    Proxy(String),
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
        let mut config = Config::from_custom_kubeconfig(file, &options).await?;
        if is_loopback(&config.cluster_url) {
            config.proxy_url = None;
        }
        if let Some(proxy) = config.proxy_url.take() {
            // The rest may have a password.
            return Err(Error::Proxy(proxy.host().unwrap_or_default().to_owned()));
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

    /// The objects of a kind in the namespace of hostloop's pods.
    pub(super) fn system<K: Namespaced>(&self) -> Api<K> {
        self.namespaced(Some(&self.system_namespace))
    }
}

/// True if the API server is on this machine, as that of kind is: no proxy reaches it.
fn is_loopback(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::as_in_the_kubeconfig(&["p"], None, &[], true)]
    #[case::user(&["p", "--as", "ann"], Some("ann"), &[], true)]
    #[case::groups(
        &["p", "--as-group=a", "--as=ann", "--as-group", "b"], Some("ann"), &["a", "b"], true
    )]
    #[case::groups_alone(&["p", "--as-group", "a"], None, &[], false)]
    fn whom_requests_act_as(
        #[case] line: &[&str],
        #[case] user: Option<&str>,
        #[case] groups: &[&str],
        #[case] is_taken: bool,
    ) {
        let line: Vec<&str> = line.iter().copied().chain(["status"]).collect();
        let mut person = AuthInfo::default();
        let cli = crate::Cli::try_parse_from(line).unwrap();
        assert_eq!(cli.cluster.impersonate(&mut person).is_ok(), is_taken);
        assert_eq!(person.impersonate.as_deref(), user);
        assert_eq!(person.impersonate_groups.unwrap_or_default(), groups);
    }

    #[rstest]
    #[case::ipv4("https://127.0.0.1:6443", true)]
    #[case::another_ipv4("https://127.8.0.1", true)]
    #[case::ipv6("https://[::1]:6443", true)]
    #[case::name("https://localhost:6443", true)]
    #[case::name_below("https://dev.localhost", true)]
    #[case::other_address("https://10.0.0.1:6443", false)]
    #[case::other_ipv6("https://[2001:db8::1]", false)]
    #[case::other_name("https://localhost.example.com", false)]
    fn servers_that_no_proxy_reaches(#[case] server: &str, #[case] is_here: bool) {
        assert_eq!(is_loopback(&server.parse().unwrap()), is_here);
    }
}
