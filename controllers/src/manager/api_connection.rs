//! The connection to the API server, and what starts with it.

use std::sync::Arc;

use kube::Client;
use tokio_util::sync::CancellationToken;

use super::elections::Elections;
use super::telemetry::Telemetry;
use crate::api::scope::Scope;
use crate::cache::{Caches, Served};
use crate::cli::Args;
use crate::client::kube::Limit;
use crate::client::{Events, Kube};
use crate::csi::Pools;
use crate::metrics::Metrics;
use crate::own_pod::OwnPod;
use crate::tasks::Tasks;

/// A connection to the API server, and what its users share.
pub(super) struct ApiConnection {
    client: Client,
    pub(super) kube: Kube,
    pub(super) metrics: Arc<Metrics>,
    pub(super) stop: CancellationToken,
}

impl ApiConnection {
    pub(super) fn new(
        client: Client,
        args: &Args,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        let limit = Limit::new(args.api.kube_api_qps, args.api.kube_api_burst);
        ApiConnection {
            kube: Kube::new(client.clone(), limit, metrics.clone(), "hostloop"),
            client,
            metrics,
            stop,
        }
    }

    /// Starts to send events as this driver.
    pub(super) fn start_events(&self, driver: &str, args: &Args, tasks: &mut Tasks) -> Events {
        let host = args.node_name.as_deref().unwrap_or_default();
        let (client, metrics) = (self.client.clone(), self.metrics.clone());
        let (events, sending) = Events::start(client, driver, host, metrics, self.stop.clone());
        tasks.keep("the task that sends events", sending);
        events
    }

    /// Creates the caches of what these nodes need, and starts to ask which optional kinds the API
    /// server serves.
    pub(super) fn start_caches(
        &self,
        scope: &Scope,
        pools: &Pools,
        events: Events,
        served: Served,
        tasks: &mut Tasks,
    ) -> Arc<Caches> {
        let (client, stop) = (self.client.clone(), self.stop.clone());
        let caches = match scope.node() {
            None => Caches::new(client, stop),
            Some(node) => Caches::of_node(client, stop, node).with_contents(!pools.are_reported()),
        };
        let caches = caches
            .reporting(self.metrics.clone(), events)
            .serving(served);
        self.follow_served(caches.served().clone(), tasks);
        Arc::new(caches)
    }

    fn follow_served(&self, served: Served, tasks: &mut Tasks) {
        let (kube, stop) = (self.kube.clone(), self.stop.clone());
        tasks.keep("the search for the API's kinds", async move {
            stop.run_until_cancelled(served.follow(&kube)).await;
            stop.cancelled().await;
        });
    }

    /// The elections of a process in this pod.
    pub(super) fn elections(&self, args: &Args, pod: OwnPod, telemetry: Telemetry) -> Elections {
        let (client, metrics) = (self.client.clone(), self.metrics.clone());
        Elections::new(args, pod, client, metrics, telemetry, self.stop.clone())
    }
}
