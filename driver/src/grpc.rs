//! The CSI services on a Unix socket: locks, threads, logs and metrics around services that know
//! none of these.
//!
//! A call's way: tonic decodes it, [`service`] says what it holds, the [`desk`] hands that out
//! and has the work done on a thread that may block, [`status`] turns an error into a code, and
//! [`observe`] reports it.

use std::io;
use std::sync::Arc;

use hostloop_proto::csi::controller_server::ControllerServer;
use hostloop_proto::csi::group_controller_server::GroupControllerServer;
use hostloop_proto::csi::identity_server::IdentityServer;
use hostloop_proto::csi::node_server::NodeServer;
use hostloop_proto::csi::snapshot_metadata_server::SnapshotMetadataServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, Router};

use crate::controller::Controller;
use crate::csi::identity::Identity;
use crate::node::Node;

mod call_log;
mod controller;
mod dispatch;
mod escape;
mod group;
pub mod grpc_status;
pub mod http;
mod identity;
mod lanes;
mod metadata;
pub mod metrics;
mod node;
pub mod operation_locks;
mod pool_metrics;
pub mod socket;

use call_log::Observer;
use controller::ControllerService;
use dispatch::Dispatcher;
use group::GroupService;
use identity::IdentityService;
use lanes::Lanes;
use metadata::MetadataService;
use metrics::Calls;
use node::NodeService;
use operation_locks::Desk;
use pool_metrics::Gauges;

/// All services of the driver. Clones share everything.
#[derive(Clone)]
pub struct Server {
    identity: Arc<Identity>,
    controller: Arc<Controller>,
    node: Arc<Node>,
    front: Dispatcher,
    calls: Arc<Calls>,
    gauges: Gauges,
}

impl Server {
    /// Over these services, which are over the same pools.
    pub fn new(identity: Identity, controller: Arc<Controller>, node: Arc<Node>) -> Self {
        let calls = Arc::new(Calls::new(&identity.name));
        Server {
            front: Dispatcher {
                desk: Desk::new(),
                lanes: Lanes::default(),
                pools: controller.pools.clone(),
                observer: Observer::new(calls.clone()),
            },
            gauges: Gauges::of(controller.pools.clone()),
            identity: Arc::new(identity),
            controller,
            node,
            calls,
        }
    }

    /// Where calls get their locks.
    pub fn desk(&self) -> &Desk {
        &self.front.desk
    }

    /// What the HTTP endpoint shows of it.
    pub fn shown(&self) -> http::Services {
        http::Services {
            calls: self.calls.clone(),
            gauges: self.gauges.clone(),
        }
    }

    /// Serves connections until `stop` comes; then takes no more, and returns when the calls on
    /// those there are have been answered.
    pub async fn serve<S, C>(
        &self,
        connections: S,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error>
    where
        S: Stream<Item = io::Result<C>>,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        self.router()
            .serve_with_incoming_shutdown(connections, stop)
            .await
    }

    fn router(&self) -> Router {
        let front = || self.front.clone();
        tonic::transport::Server::builder()
            .add_service(IdentityServer::new(IdentityService {
                identity: self.identity.clone(),
                observer: self.front.observer.clone(),
            }))
            .add_service(ControllerServer::new(ControllerService {
                front: front(),
                service: self.controller.clone(),
            }))
            .add_service(GroupControllerServer::new(GroupService {
                front: front(),
                service: self.controller.clone(),
            }))
            .add_service(SnapshotMetadataServer::new(MetadataService::new(
                front(),
                self.controller.clone(),
            )))
            .add_service(NodeServer::new(NodeService {
                front: front(),
                service: self.node.clone(),
            }))
    }
}
