//! What every loop is given.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Metrics;
use super::queue::{Backoff, Queue};
use crate::runtime::caches::Wide;
use crate::runtime::{Caches, Driver, Events, Kube, Leadership, Pools, Room, Scope};

/// What every loop is given. Clones share it.
#[derive(Clone, Debug)]
pub struct Context {
    /// The CSI driver.
    pub driver: Arc<Driver>,
    /// The API server.
    pub kube: Kube,
    /// What has been seen of it.
    pub caches: Arc<Caches>,
    /// Tells users what happened to their objects.
    pub events: Events,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Whose objects these loops serve.
    pub scope: Scope,
    /// Which handles are of this node's driver, if it says so.
    pub pools: Pools,
    /// Whether this process does the work that one does for the cluster.
    pub leader: Leadership,
    /// Told when the driver may have more or less room than before.
    pub room: Arc<Room>,
    /// Set when the loops are to end.
    pub stop: CancellationToken,
    /// What all loops take from the command line.
    pub common: Common,
}

/// What the upstream sidecars have under one name with different defaults: given, it is for all
/// loops; not given, each has its own.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// `--timeout`: of one CSI call.
    pub timeout: Option<Duration>,
    /// `--worker-threads`.
    pub worker_threads: Option<usize>,
    /// `--retry-interval-start`.
    pub retry_interval_start: Option<Duration>,
    /// `--retry-interval-max`.
    pub retry_interval_max: Option<Duration>,
    /// `--resync-period`: between two looks at everything.
    pub resync_period: Option<Duration>,
    /// `--extra-create-metadata`.
    pub extra_create_metadata: bool,
    /// `--default-fstype`.
    pub default_fstype: String,
}

impl Common {
    /// The backoff of queues: 1 s to 5 min unless told otherwise.
    pub fn backoff(&self) -> Backoff {
        Backoff {
            start: self.retry_interval_start.unwrap_or(Duration::from_secs(1)),
            max: self.retry_interval_max.unwrap_or(Duration::from_secs(300)),
        }
    }
}

impl Context {
    /// Whether this process does now what is within its scope: a node's part always, the whole
    /// only as the leader. To be asked before each write and call.
    pub fn acts(&self) -> bool {
        match self.scope {
            Scope::Node { .. } => true,
            Scope::Cluster | Scope::Leader => self.leader.leads(),
        }
    }

    /// An empty queue with the backoff of the command line.
    pub fn queue<K: Clone + Eq + Hash>(&self) -> Queue<K> {
        Queue::new(self.common.backoff())
    }

    /// The same with caches of the whole cluster, as long as those are held: for work that has to
    /// see everything, where every node has loops of its own.
    pub fn with_all(self) -> (Self, Wide) {
        let wide = self.caches.wide();
        let caches = wide.caches();
        (Context { caches, ..self }, wide)
    }
}
