//! The CSI services on a Unix socket: locks, threads, logs and metrics around services that know
//! none of these.
//!
//! For each RPC, tonic decodes the request, and the table of `dispatch` names its lock keys.
//! [`operation_locks`] waits for earlier RPCs on these and runs the work on a blocking thread.
//! [`grpc_status`] maps an error to a code, and `call_log` reports the RPC.

use std::io;
use std::sync::Arc;

use hostloop_controllers::grpc_server;
use hostloop_proto::csi::controller_server::ControllerServer;
use hostloop_proto::csi::group_controller_server::GroupControllerServer;
use hostloop_proto::csi::identity_server::IdentityServer;
use hostloop_proto::csi::node_server::NodeServer;
use hostloop_proto::csi::snapshot_metadata_server::SnapshotMetadataServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::transport::server::Connected;

use crate::blocking::Blocking;
use crate::controller::Controller;
use crate::csi::identity::Identity;
use crate::node::Node;
use crate::rpc_faults::FaultInjector;
use crate::storage::Pools;

pub(crate) mod call_line;
mod call_log;
mod controller;
mod cuts;
mod dispatch;
pub(crate) mod event_fields;
mod group;
pub mod grpc_status;
mod identity;
mod metadata;
pub mod metrics;
mod node;
pub mod operation_locks;
pub mod permits;
mod pool_metrics;
mod pool_threads;
mod reported_services;
mod volume_faults;
mod wait_limit;

use controller::ControllerService;
use cuts::Bursts;
use dispatch::Dispatcher;
use group::GroupService;
use identity::IdentityService;
use metadata::MetadataService;
use metrics::Calls;
use node::NodeService;
use operation_locks::OperationLocks;
use pool_threads::PoolThreads;

pub use cuts::Exploration;
pub use reported_services::ReportedServices;

/// All gRPC services of the driver. Clones share all state.
#[derive(Clone)]
pub struct Server {
    identity: Arc<Identity>,
    controller: Arc<Controller>,
    node: Arc<Node>,
    dispatcher: Dispatcher,
    blocking: Blocking,
    bursts: Arc<Bursts>,
}

impl Server {
    /// Creates a server for these services. All of them must use the same pools.
    pub fn new(identity: Identity, controller: Arc<Controller>, node: Arc<Node>) -> Self {
        Server::running_on(Blocking::default(), identity, controller, node)
    }

    /// Creates a server for these services. `blocking` runs their work.
    pub fn running_on(
        blocking: Blocking,
        identity: Identity,
        controller: Arc<Controller>,
        node: Arc<Node>,
    ) -> Self {
        Server {
            dispatcher: Dispatcher {
                locks: OperationLocks::running_on(blocking.clone()),
                pool_threads: PoolThreads::default(),
                pools: controller.pools.clone(),
                calls: Arc::new(Calls::new(&identity.name)),
                faults: None,
            },
            identity: Arc::new(identity),
            controller,
            node,
            blocking,
            bursts: Arc::default(),
        }
    }

    /// The same server with faults of its RPCs, if there are rules for them.
    pub fn with_faults(mut self, faults: Option<Arc<FaultInjector>>) -> Self {
        self.dispatcher.faults = faults;
        self
    }

    /// The locks of the RPCs.
    pub fn locks(&self) -> &OperationLocks {
        &self.dispatcher.locks
    }

    /// Runs the work of the services.
    pub fn blocking(&self) -> &Blocking {
        &self.blocking
    }

    /// The pools of the services.
    pub fn pools(&self) -> &Arc<Pools> {
        &self.dispatcher.pools
    }

    /// The part of the services that the HTTP endpoint reports.
    pub fn shown(&self) -> ReportedServices {
        ReportedServices {
            calls: self.dispatcher.calls.clone(),
            pools: self.dispatcher.pools.clone(),
            blocking: self.blocking.clone(),
        }
    }

    /// Serves connections until `stop` resolves. Then it accepts no new connection, and returns
    /// once all RPCs on the existing ones are answered.
    pub async fn serve<S, C>(
        &self,
        connections: S,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error>
    where
        S: Stream<Item = io::Result<C>>,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let mut server = grpc_server::builder();
        server
            .add_routes(self.routes())
            .serve_with_incoming_shutdown(connections, stop)
            .await
    }

    /// The services, to call them in this process.
    pub fn routes(&self) -> Routes {
        Routes::default()
            .add_service(IdentityServer::new(IdentityService {
                identity: self.identity.clone(),
                calls: self.dispatcher.calls.clone(),
                faults: self.dispatcher.faults.clone(),
            }))
            .add_service(ControllerServer::new(ControllerService {
                dispatcher: self.dispatcher.clone(),
                service: self.controller.clone(),
            }))
            .add_service(GroupControllerServer::new(GroupService {
                dispatcher: self.dispatcher.clone(),
                service: self.controller.clone(),
            }))
            .add_service(SnapshotMetadataServer::new(MetadataService::new(
                self.dispatcher.clone(),
                self.controller.clone(),
            )))
            .add_service(NodeServer::new(NodeService {
                dispatcher: self.dispatcher.clone(),
                service: self.node.clone(),
            }))
    }
}
