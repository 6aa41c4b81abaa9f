//! Starts and stops the controllers of the process.
//!
//! Registration and liveness start at once and never wait for the API server, because kubelet needs
//! them. The other controllers start when the driver has reported its capabilities; each waits for
//! its own caches. The end of one ends all: a process that does half its work only looks healthy.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi;
use tokio_util::sync::CancellationToken;

use crate::api::scope::Scope;
use crate::cache::{Caches, Served, WatchScope};
use crate::cli::{Args, LeaderTasks};
use crate::client::{Events, Kube};
use crate::controller::Context;
use crate::csi::Driver;
use crate::csi::driver::DriverError;
use crate::liveness::{self, Checks};
use crate::node_endpoint::OwnEndpoint;
use crate::registrar;
use crate::registrar::lost::Registration;
use crate::roles::Role;
use crate::snapshot_metadata;
use crate::tasks::Tasks;
use crate::watch_scope;

mod api_connection;
mod client;
mod controllers;
mod elections;
mod error;
mod features;
mod leader_tasks;
mod node_labels;
mod setup;
mod telemetry;

use api_connection::ApiConnection;
pub use client::{client_over, connect};
pub use error::Error;
pub use node_labels::NodeLabels;
pub use setup::{Setup, Source};
pub use telemetry::Telemetry;

/// Timeout of `NodeGetInfo`.
const DEADLINE: Duration = Duration::from_secs(10);
/// The wait before `NodeGetInfo` is called again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a watch may fail while the API server answers. A longer failure needs a restart.
const STALE: Duration = Duration::from_secs(300);

/// Runs the selected controllers until `stop` is set, or until one of them ends.
pub async fn run(
    mut setup: Setup,
    telemetry: Telemetry,
    stop: CancellationToken,
) -> Result<(), Error> {
    setup.check().map_err(Error::Args)?;
    setup.driver = setup.driver.counted(telemetry.common());
    let mut tasks = Tasks::default();
    let checks = Checks::default();
    let registration = begin_for_kubelet(&setup, &checks, &stop, &mut tasks);

    let begun = stop.child_token();
    // A caller that drops this future ends everything that it has begun.
    let _ending = begun.clone().drop_guard();
    let controllers = {
        let (begun, telemetry) = (begun.clone(), telemetry.clone());
        begin_controllers(setup, telemetry, checks, registration, begun)
    };
    let ended = tokio::select! {
        controllers = controllers => match controllers {
            Ok(mut controllers) => {
                let ended = tokio::select! {
                    () = stop.cancelled() => Ok(()),
                    ended = tasks.next() => Err(ended.into()),
                    ended = controllers.next() => Err(ended.into()),
                };
                begun.cancel();
                controllers.finish().await;
                ended
            }
            Err(Error::Driver(DriverError::Stopped)) => Ok(()),
            Err(error) => Err(error),
        },
        ended = tasks.next() => Err(ended.into()),
        () = stop.cancelled() => Ok(()),
    };
    begun.cancel();
    if ended.is_ok() {
        tasks.finish().await;
    }
    ended
}

/// Starts registration and liveness.
///
/// Returns the state of the registration, if the process registers a driver.
fn begin_for_kubelet(
    setup: &Setup,
    checks: &Checks,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Option<registrar::Health> {
    let (args, kubelet) = (&setup.args, &setup.args.kubelet);
    let endpoint = kubelet.kubelet_registration_path.clone();
    let endpoint = endpoint.or_else(|| setup.registration_endpoint.clone());
    let csi = setup.driver.csi();
    let serves_node = args.election.leader_tasks != LeaderTasks::Only;
    let registers = serves_node && args.controllers.has(Role::Registrar);
    let registration = csi
        .zip(endpoint)
        .filter(|_| registers)
        .map(|(csi, endpoint)| {
            let health = registrar::Health::default();
            let seen = health.clone();
            checks.add("registration", move || seen.check());
            let options = registrar::Options {
                registration_dir: kubelet.plugin_registration_path.clone(),
                endpoint,
                health: health.clone(),
            };
            let registered = registrar::run(options, csi.clone(), stop.clone());
            tasks.start("the registrar", async {
                registered.await.map_err(|error| error.to_string())
            });
            health
        });
    if args.controllers.has(Role::Liveness) {
        let address = SocketAddr::new(everywhere(), kubelet.health_port);
        let (csi, checks) = (csi.cloned(), checks.clone());
        let options = liveness::Options {
            address,
            probe_timeout: kubelet.probe_timeout,
        };
        let stop = stop.clone();
        tasks.start("the liveness endpoint", async move {
            let served = liveness::run(options, csi, checks, stop);
            served.await.map_err(|error| error.to_string())
        });
    }
    registration
}

/// The wildcard address: for IPv4 and IPv6 if this machine has IPv6.
fn everywhere() -> IpAddr {
    if Path::new("/proc/net/if_inet6").exists() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

/// Starts the controllers that work with the API server.
async fn begin_controllers(
    setup: Setup,
    telemetry: Telemetry,
    checks: Checks,
    registration: Option<registrar::Health>,
    stop: CancellationToken,
) -> Result<Tasks, Error> {
    let mut tasks = Tasks::default();
    let any = controllers::any(&setup.args.controllers);
    if !any && setup.labels.is_none() {
        return Ok(tasks);
    }
    let client = setup.client.await?;
    let api = ApiConnection::new(client, &setup.args, telemetry.common().clone(), stop);
    if let Some(labels) = setup.labels {
        // Start this before NodeGetInfo: the driver may not know its topology without the labels.
        let read = labels.run(api.kube.clone(), api.stop.clone());
        tasks.start("the task that reads the node's labels", read);
    }
    if !any {
        return Ok(tasks);
    }
    let driver = setup.driver.introduce(&api.stop).await?;
    api.metrics.introduce(&driver.name);
    let leader_tasks = setup.args.election.leader_tasks;
    let scope = scope_of(&setup.args, setup.node_deployment, &driver, &api.stop).await?;
    tracing::info!(
        driver = %driver.name, version = %driver.version, node = scope.node(),
        ?leader_tasks, "starting the controllers"
    );
    let endpoint = own_endpoint(&setup.args, &scope)?;
    let events = api.start_events(&driver.name, &setup.args, &mut tasks);
    let served = Served::of(&features::needed(&driver, &setup.args));
    let caches = api.start_caches(&scope, &setup.pools, events.clone(), served, &mut tasks);
    watch_over(&checks, &caches, &api.kube);
    tasks.keep(
        "the task that retries after space was freed",
        setup.freed.clone().pace(api.stop.clone()),
    );
    if let Some(registration) = registration_of(registration, &driver, &scope, &api.kube, &events) {
        tasks.keep(
            "the task that watches the driver's registration",
            registration.keep(api.stop.clone()),
        );
    }
    let mut elections = api.elections(&setup.args, setup.pod.clone(), telemetry.clone());
    let leader = elections.of_nodes(&driver.name, &scope, &mut tasks);
    if leader_tasks == LeaderTasks::Only {
        let telemetry = telemetry.clone();
        checks.add("leader election", move || telemetry.leaders());
    }
    if !watch_scope::is_narrow(&setup.args, &leader) {
        caches.set_watch_scope(WatchScope::Whole);
    }
    let context = Context {
        driver: Arc::new(driver),
        kube: api.kube,
        caches,
        events,
        metrics: api.metrics,
        scope,
        pod: setup.pod,
        pools: setup.pools,
        endpoint,
        leader,
        room: Arc::default(),
        freed: setup.freed,
        health_changed: Arc::default(),
        stop: api.stop,
        common: setup.args.common(&setup.default_fstype),
    };
    let manager = controllers::Manager {
        inputs: controllers::ControllerInputs {
            args: setup.args,
            counts: telemetry.counts(),
            inventory: setup.inventory,
            faults: setup.faults,
        },
        context: &context,
        elections: &mut elections,
        tasks: &mut tasks,
    };
    manager.start();
    Ok(tasks)
}

/// The nodes that this process serves.
async fn scope_of(
    args: &Args,
    node_deployment: bool,
    driver: &Driver,
    stop: &CancellationToken,
) -> Result<Scope, Error> {
    if args.election.leader_tasks == LeaderTasks::Only {
        Ok(Scope::Leader)
    } else if args.node_deployment.unwrap_or(node_deployment) {
        node_scope(driver, args.node_name.clone(), stop).await
    } else {
        Ok(Scope::Cluster)
    }
}

/// Where the leader reads this node's changed blocks, if this process serves them.
fn own_endpoint(args: &Args, scope: &Scope) -> Result<Option<Arc<OwnEndpoint>>, Error> {
    if scope.node().is_none() || !args.controllers.has(Role::SnapshotMetadata) {
        return Ok(None);
    }
    Ok(snapshot_metadata::own_endpoint(&args.snapshot_metadata)?)
}

/// The driver's registration on its node, if this process registers it.
fn registration_of(
    health: Option<registrar::Health>,
    driver: &Driver,
    scope: &Scope,
    kube: &Kube,
    events: &Events,
) -> Option<Registration> {
    let Scope::Node { name, segments } = scope else {
        return None;
    };
    Some(Registration {
        driver: driver.name.clone(),
        node: name.clone(),
        segments: segments.clone(),
        health: health?,
        kube: kube.clone(),
        events: events.clone(),
    })
}

/// Fails the liveness check if a watch has failed for long although the API server answers. Kubelet
/// then restarts the process.
fn watch_over(checks: &Checks, caches: &Arc<Caches>, kube: &Kube) {
    let (caches, kube) = (caches.clone(), kube.clone());
    checks.add("watches", move || {
        let stale = caches
            .troubles()
            .into_iter()
            .find(|(_, trouble)| trouble.since.elapsed() > STALE);
        match stale {
            Some((kind, trouble)) if kube.answered_within(STALE) => Err(format!(
                "watching {kind} has failed since {:?}: {}",
                trouble.since.elapsed(),
                trouble.error
            )),
            _ => Ok(()),
        }
    });
}

async fn node_scope(
    driver: &Driver,
    name: Option<String>,
    stop: &CancellationToken,
) -> Result<Scope, Error> {
    let asked = async {
        loop {
            match driver
                .csi
                .node_get_info(csi::NodeGetInfoRequest {}, DEADLINE)
                .await
            {
                Ok(info) => return info,
                Err(error) => tracing::warn!(
                    %error,
                    "cannot read the node's name and topology from the driver"
                ),
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    let info = stop
        .run_until_cancelled(asked)
        .await
        .ok_or(DriverError::Stopped)?;
    let segments = info.accessible_topology.map(|topology| topology.segments);
    let segments: BTreeMap<String, String> = segments.unwrap_or_default().into_iter().collect();
    Ok(Scope::Node {
        name: name.unwrap_or(info.node_id),
        segments,
    })
}

#[cfg(test)]
mod tests;
