//! The context that every controller receives.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::api::scope::Scope;
use crate::cache::Caches;
use crate::cache::caches::Wide;
use crate::client::{Events, Kube, Leadership};
use crate::csi::{CapacitySignal, Driver, Freed, FreedSignal, Pools};
use crate::metrics::Metrics;
use crate::node_endpoint::OwnEndpoint;
use crate::own_pod::OwnPod;
use crate::queue::{Backoff, Queue, QueueKey};

/// The context that every controller receives. Clones share it.
#[derive(Clone)]
pub struct Context {
    pub driver: Arc<Driver>,
    pub kube: Kube,
    pub caches: Arc<Caches>,
    /// Sends events about objects to users.
    pub events: Events,
    pub metrics: Arc<Metrics>,
    /// The nodes that these controllers serve.
    pub scope: Scope,
    /// The pod of this process.
    pub pod: OwnPod,
    /// The pools of this node's driver, if the driver reports them. A handle names its pool.
    pub pools: Pools,
    /// Where the leader reads this node's changed blocks, if this process serves them.
    pub endpoint: Option<Arc<OwnEndpoint>>,
    /// Whether this process leads, for work that one process does for the whole cluster.
    pub leader: Leadership,
    /// The signal that the driver's free capacity may have changed.
    pub room: Arc<CapacitySignal>,
    /// The signal that something became free that others wait for.
    pub freed: FreedSignal,
    /// The signal that the health of a volume has changed. Only the health controller waits for it.
    pub health_changed: Arc<Notify>,
    /// Set when the controllers must end.
    pub stop: CancellationToken,
    /// Flags that all controllers share.
    pub common: Common,
}

/// Flags that the upstream sidecars share by name but with different defaults. A given flag applies
/// to all controllers; otherwise each has its own default.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// `--timeout`, of one CSI call.
    pub timeout: Option<Duration>,
    pub worker_threads: Option<usize>,
    pub retry_interval_start: Option<Duration>,
    pub retry_interval_max: Option<Duration>,
    /// `--resync-period`, between two full passes.
    pub resync_period: Option<Duration>,
    pub extra_create_metadata: bool,
    pub default_fstype: String,
}

impl Common {
    /// The backoff of queues; the default is 1 s to 5 min.
    pub fn backoff(&self) -> Backoff {
        Backoff {
            start: self.retry_interval_start.unwrap_or(Duration::from_secs(1)),
            max: self.retry_interval_max.unwrap_or(Duration::from_secs(300)),
        }
    }
}

impl Context {
    /// True if this process may act now. A process that serves one node always may; one that serves
    /// the cluster needs the lead. Call this before each write and CSI call.
    pub fn acts(&self) -> bool {
        match self.scope {
            Scope::Node { .. } => true,
            Scope::Cluster | Scope::Leader => self.leader.leads(),
        }
    }

    /// Returns the context for work that needs this lead. Its calls and writes are sent only while
    /// the lead lasts.
    pub fn led_by(self, leader: &Leadership) -> Self {
        Context {
            driver: Arc::new(self.driver.fenced(leader)),
            kube: self.kube.fenced(leader),
            leader: leader.clone(),
            ..self
        }
    }

    /// Announces that a call freed space in a pool.
    pub fn room_freed(&self) {
        self.room.change();
        self.freed.announce_by_call(&Freed::Room);
    }

    /// Creates an empty queue with the backoff from the command line.
    pub fn queue<K: QueueKey>(&self) -> Queue<K> {
        Queue::new(self.common.backoff())
    }

    /// Returns the context with cluster-wide caches, which exist while `Wide` is held. Tasks that
    /// need every object use it if every node has its own controllers.
    pub fn with_all(self) -> (Self, Wide) {
        let wide = self.caches.wide();
        let caches = wide.caches();
        (Context { caches, ..self }, wide)
    }
}
