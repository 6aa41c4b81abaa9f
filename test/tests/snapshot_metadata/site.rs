//! The cluster, with the deployed service, and a backup tool outside of it.
//!
//! The tool reaches the service at its usual address: a hosts file that only the tool sees names a
//! loopback address, at which this process passes connections on to the controller's pod, as a Service
//! does.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_test::cluster::{Cluster, Options, wait_for};
use hostloop_test::deployed::NAMESPACE;
use hostloop_test::machine::{self, text};
use hostloop_test::plugin::Plugin;
use hostloop_test::{PATIENCE, deployed, tools};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::listing::Listing;

/// The host and the port of the service's address.
const HOST: &str = "hostloop-snapshot-metadata.hostloop.svc";
const PORT: u16 = 6443;
/// The port of the controller's pod.
const POD_PORT: u16 = 50051;

/// Runs a command with another hosts file. The client asks no server for its settings: there is none,
/// and each call would wait for it.
const WITH_HOSTS: &str = "mount --bind \"$0\" /etc/hosts && export GODEBUG=netdns=go \
    GRPC_ENABLE_TXT_SERVICE_CONFIG=false && exec \"$@\"";

/// The cluster with the service.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    /// On each node, a directory of this name has the pool. On the first one it is this directory.
    dir: TempDir,
    /// Where the controller's pod answers.
    controller: Arc<Mutex<SocketAddr>>,
    /// The kubeconfig of the example's account.
    backup: PathBuf,
}

impl Site {
    /// Starts a cluster and installs hostloop as a person does, and the example's account.
    pub(crate) async fn up() -> Site {
        let cluster = Cluster::up(&Options::two_nodes().apart("blocks"));
        // Each node has a /var of its own.
        let dir = tempfile::Builder::new()
            .prefix("hostloop-blocks-")
            .tempdir_in("/var/tmp");
        let dir = dir.expect("a directory can be made in /var/tmp");
        let pool = dir.path().join("pool");
        for node in cluster.all_nodes() {
            std::fs::create_dir_all(node.path(&pool)).expect("a pool's directory can be made");
        }
        cluster.load(&deployed::tested_image(dir.path().join("hostloop.tar")));
        // Snapshots share blocks in an image.
        let named = format!("default={},image=4Gi", text(&pool));
        let install = [
            "install",
            "--snapshot-metadata",
            "--pool",
            &named,
            "--kubelet-dir",
            text(cluster.kubelet_dir()),
        ];
        Plugin::of(&cluster).succeeds(&install, &["hostloop is installed"]);
        cluster.kubectl(&["apply", "-f", text(&example())]);
        let backup = cluster.kubeconfig_of("default", "backup", dir.path());

        let address = SocketAddr::new(machine::own_address().ip(), PORT);
        let hosts = format!("127.0.0.1 localhost\n{} {HOST}\n", address.ip());
        std::fs::write(dir.path().join("hosts"), hosts).expect("a file can be written");
        let listener = TcpListener::bind(address).await;
        let listener = listener.unwrap_or_else(|e| panic!("{address}: {e}"));
        let controller = Arc::new(Mutex::new(address));
        tokio::spawn(pass_on(listener, controller.clone()));
        let site = Site {
            cluster,
            dir,
            controller,
            backup,
        };
        site.follow_controller().await;
        site
    }

    /// Finds the one pod of the controller.
    pub(crate) async fn follow_controller(&self) {
        let rollout = [
            "rollout",
            "status",
            "-n",
            NAMESPACE,
            "deployment/hostloop-controller",
            "--timeout=300s",
        ];
        self.cluster.kubectl(&rollout);
        let addresses = [
            "get",
            "pods",
            "-n",
            NAMESPACE,
            "-l",
            "app.kubernetes.io/name=hostloop-controller",
            "-o",
            "jsonpath={.items[*].status.podIP}",
        ];
        let found = wait_for("the controller's address", PATIENCE, async || {
            let found = self.cluster.try_kubectl(&addresses)?;
            found.trim().parse::<IpAddr>().map_err(|_| found)
        })
        .await;
        *self.controller.lock() = SocketAddr::new(found, POD_PORT);
    }

    /// Where the service answers.
    pub(crate) fn address(&self) -> SocketAddr {
        *self.controller.lock()
    }

    /// A directory for the test's own files.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs the backup tool as the example's account.
    pub(crate) fn tool(&self, arguments: &[&str]) -> Result<String, String> {
        self.tool_as(&self.backup, arguments)
    }

    /// Runs the backup tool as the administrator, who may ask for the tokens of all accounts.
    pub(crate) fn tool_of_administrator(&self, arguments: &[&str]) -> Result<String, String> {
        self.tool_as(&self.cluster.kubeconfig(), arguments)
    }

    /// Runs the backup tool as this account. Of two namespaces, the last counts.
    pub(crate) fn tool_as(&self, kubeconfig: &Path, arguments: &[&str]) -> Result<String, String> {
        let hosts = self.dir.path().join("hosts");
        let client = tools::snapshot_metadata_client();
        let words = [
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            WITH_HOSTS,
            text(&hosts),
            text(&client),
            "-kubeconfig",
            text(kubeconfig),
            "-n",
            "default",
        ];
        machine::try_run("unshare", &[&words[..], arguments].concat())
    }

    /// What the tool lists with these arguments.
    pub(crate) fn list(&self, arguments: &[&str]) -> Listing {
        let printed = self.tool(arguments);
        Listing::read(&printed.unwrap_or_else(|why| panic!("{why}")))
    }

    /// Removes hostloop and the cluster.
    pub(crate) async fn down(self) {
        self.cluster.kubectl(&["delete", "-f", text(&example())]);
        let plugin = Plugin::of(&self.cluster);
        plugin.uninstalls_with_data().await;
    }
}

/// The example of a backup tool's account.
fn example() -> PathBuf {
    machine::root().join("deploy/examples/backup-client.yaml")
}

/// Passes connections on, until the test ends.
async fn pass_on(listener: TcpListener, to: Arc<Mutex<SocketAddr>>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let to = *to.lock();
        tokio::spawn(async move {
            // Without the pod, the connection ends, as that of a Service does.
            if let Ok(mut far) = TcpStream::connect(to).await {
                let _ = copy_bidirectional(&mut near, &mut far).await;
            }
        });
    }
}
