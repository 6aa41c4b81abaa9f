//! A server over one pool, served on a socket in a temporary directory, and a client of it.

use std::fs::DirBuilder;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_controllers::socket::Socket;
use hostloop_driver::grpc::Server;
use hostloop_driver::storage::{NewVolume, Pools};
use hostloop_fake_kernel::Model;
use hostloop_proto::csi;
use hostloop_proto::csi::identity_client::IdentityClient;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};

use super::gate::Gate;
use crate::testkit::{self, Configs, Site, TestKernel, mount_as};

pub(crate) struct Rig<K: TestKernel = Model> {
    pub(crate) pools: Arc<Pools>,
    pub(crate) server: Server,
    pub(crate) socket: PathBuf,
    /// The gate before mounts and usage queries of the fake kernel, open at first. No other kernel
    /// has it.
    pub(crate) gate: Arc<Gate>,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
    site: Site<K>,
}

impl<K: TestKernel> Deref for Rig<K> {
    type Target = Site<K>;

    fn deref(&self) -> &Site<K> {
        &self.site
    }
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Configs)) -> Rig {
        let mut configs = Configs::default();
        change(&mut configs);
        let site: Site = testkit::Rig::site(&["default=DIR/pool", "other=DIR/other"]);
        let gate = Gate::before(&site.kernel, &["mount", "usage"]);
        Rig {
            gate,
            ..Rig::over(site, configs)
        }
    }

    /// Waits until this many calls have reached the gate.
    pub(crate) async fn wait_for(&self, tried: usize) {
        reached(&self.gate, tried).await;
    }

    /// Checks that Probe answers that the driver is ready.
    pub(crate) async fn assert_ready(&self) {
        let mut identity = IdentityClient::new(self.channel().await);
        let ready = identity.probe(csi::ProbeRequest {}).await.unwrap();
        assert_eq!(ready.into_inner().ready, Some(true));
    }
}

impl<K: TestKernel> Rig<K> {
    /// Serves the pools of a site.
    pub(crate) fn over(site: Site<K>, configs: Configs) -> Rig<K> {
        let pools = site.start();
        let server = configs.server(&pools);
        let socket = site.root().join("csi.sock");
        let bound = Socket::bind(&socket, &DirBuilder::new()).unwrap();
        let (listener, name) = bound.watched().unwrap();
        let connections = UnixListenerStream::new(listener);
        let (stop, stopped) = oneshot::channel();
        let serving = {
            let server = server.clone();
            tokio::spawn(async move {
                let stop = async { drop(stopped.await) };
                server.serve(connections, stop).await.unwrap();
                drop(name);
            })
        };
        let gate = Arc::default();
        Rig {
            pools,
            server,
            socket,
            gate,
            stop: Some(stop),
            serving: Some(serving),
            site,
        }
    }

    /// A new connection of a client.
    pub(crate) async fn channel(&self) -> Channel {
        connect(&self.socket).await
    }

    pub(crate) async fn node(&self) -> csi::node_client::NodeClient<Channel> {
        csi::node_client::NodeClient::new(self.channel().await)
    }

    pub(crate) async fn controller(&self) -> csi::controller_client::ControllerClient<Channel> {
        csi::controller_client::ControllerClient::new(self.channel().await)
    }

    /// Stops taking connections.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until all calls are answered and all work is done.
    pub(crate) async fn stopped(&mut self) {
        self.serving.take().unwrap().await.unwrap();
        self.server.locks().close();
        self.server.locks().drained().await;
    }

    /// Creates a volume without the server.
    pub(crate) fn volume(&self, name: &str) -> String {
        self.volume_in("default", name)
    }

    pub(crate) fn volume_in(&self, pool: &str, name: &str) -> String {
        let new = NewVolume {
            capacity_bytes: 16 << 20,
            ..testkit::new(name)
        };
        let pool = self.pools.named(Some(pool)).unwrap();
        self.pools.create_volume(&pool, new).unwrap().id.to_string()
    }

    /// A request to stage a volume where kubelet would.
    pub(crate) fn stage(&self, volume: &str) -> csi::NodeStageVolumeRequest {
        let at = self.root().join("stage").join(volume);
        std::fs::create_dir_all(&at).unwrap();
        csi::NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: at.to_str().unwrap().to_owned(),
            volume_capability: Some(mountable()),
            ..Default::default()
        }
    }

    pub(crate) fn unstage(&self, volume: &str) -> csi::NodeUnstageVolumeRequest {
        csi::NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: self.stage(volume).staging_target_path,
        }
    }
}

/// Waits until this many calls have reached a gate.
pub(crate) async fn reached(gate: &Arc<Gate>, tried: usize) {
    let gate = gate.clone();
    tokio::task::spawn_blocking(move || gate.wait_for(tried))
        .await
        .unwrap();
}

/// A client of the server at this socket.
pub(crate) async fn connect(socket: &Path) -> Channel {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connector).await.unwrap()
}

/// An ext4 mount for one writer.
pub(crate) fn mountable() -> csi::VolumeCapability {
    mount_as("ext4", Mode::SingleNodeWriter)
}
