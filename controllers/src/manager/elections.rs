//! Leader election: acquires the leases that the controllers need.

use std::collections::BTreeMap;
use std::sync::Arc;

use hostloop_api_objects::lease_name::leader_lease;
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::telemetry::Telemetry;
use crate::api::scope::Scope;
use crate::cli::{Args, LeaderTasks};
use crate::client::Leadership;
use crate::client::lease::{LeaseConfig, hold, lease_name, observe};
use crate::controller::Context;
use crate::metrics::Metrics;
use crate::own_pod::OwnPod;
use crate::tasks::Tasks;

/// Acquires leases on demand.
pub(super) struct Elections {
    args: Args,
    client: Client,
    metrics: Arc<Metrics>,
    telemetry: Telemetry,
    pod: OwnPod,
    /// Keyed by namespace and name. Two holders with one identity would each mistake the other's
    /// renewals for another process's.
    held: BTreeMap<(String, String), Leadership>,
    stop: CancellationToken,
}

impl Elections {
    pub(super) fn new(
        args: &Args,
        pod: OwnPod,
        client: Client,
        metrics: Arc<Metrics>,
        telemetry: Telemetry,
        stop: CancellationToken,
    ) -> Self {
        let args = args.clone();
        Elections {
            args,
            client,
            metrics,
            telemetry,
            pod,
            held: BTreeMap::new(),
            stop,
        }
    }

    /// Returns the leadership among processes of which every node has one.
    pub(super) fn of_nodes(
        &mut self,
        driver: &str,
        scope: &Scope,
        tasks: &mut Tasks,
    ) -> Leadership {
        let per_node = scope.is_per_node();
        let lease = leader_lease(driver);
        let is_elected = self.args.election.leader_election.unwrap_or(per_node) && per_node;
        if !is_elected {
            Leadership::always()
        } else if self.args.election.leader_tasks == LeaderTasks::Elsewhere {
            self.of_others(&lease, tasks)
        } else {
            self.of(&lease, None, tasks)
        }
    }

    /// Observes a lease that other processes compete for.
    fn of_others(&self, name: &str, tasks: &mut Tasks) -> Leadership {
        let config = self.config(name, None);
        let (leader, task) = observe(self.client.clone(), config, self.stop.clone());
        tasks.keep("the task that watches the leader", task);
        leader
    }

    /// Returns the lease and leadership of one controller among processes that serve the whole
    /// cluster; `None` without an election.
    pub(super) fn of_loop(
        &mut self,
        context: &Context,
        lease: &str,
        tasks: &mut Tasks,
    ) -> Option<(String, Leadership)> {
        let central = !context.scope.is_per_node();
        let elected = central && self.args.election.leader_election.unwrap_or(false);
        elected.then(|| (lease_name(lease), self.of(lease, None, tasks)))
    }

    /// A lease in `namespace`, or in the default lease namespace. Controllers that ask for the same lease
    /// share one holder.
    pub(super) fn of(
        &mut self,
        name: &str,
        namespace: Option<&str>,
        tasks: &mut Tasks,
    ) -> Leadership {
        let config = self.config(name, namespace);
        let key = (config.namespace.clone(), config.name.clone());
        if let Some(leader) = self.held.get(&key) {
            return leader.clone();
        }
        let lease = config.name.clone();
        let (leader, task) = hold(
            self.client.clone(),
            config,
            self.metrics.clone(),
            self.stop.clone(),
        );
        self.telemetry.add_leader(&lease, &leader);
        tasks.keep("leader election", task);
        self.held.insert(key, leader.clone());
        leader
    }

    fn config(&self, name: &str, namespace: Option<&str>) -> LeaseConfig {
        let election = &self.args.election;
        let namespace = namespace.map(str::to_owned);
        let namespace = namespace.or_else(|| election.leader_election_namespace.clone());
        LeaseConfig {
            namespace: namespace.unwrap_or_else(|| self.pod.namespace.clone()),
            name: lease_name(name),
            identity: self.pod.identity.clone(),
            duration: election.leader_election_lease_duration,
            renew_deadline: election.leader_election_renew_deadline,
            retry_period: election.leader_election_retry_period,
            labels: election.labels(),
        }
    }
}
