//! Everything together: which loops run, in which order they begin, and what ends them.
//!
//! What kubelet needs (registration, liveness) begins at once and never waits for the API server.
//! The loops begin when the driver has said what it can do; each waits for what it decides by.
//! The end of one is the end of all: a process that does half its work looks healthy and is not.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hostloop_proto::csi;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::args::LeaderTasks;
use crate::capacity;
use crate::health;
use crate::liveness::{self, Checks};
use crate::orphans;
use crate::placement;
use crate::provisioner;
use crate::registrar;
use crate::roles::Role;
use crate::runtime::csi::Failure;
use crate::runtime::driver::DriverError;
use crate::runtime::kube::{ClientError, ClientOptions, Limit, connect_counted};
use crate::runtime::{Caches, Context, Driver, Events, Kube, Leadership, Metrics, Scope, Width};
use crate::sight;
use crate::snapshot_controller;

mod controllers;
mod elections;
mod labels;
mod leader_tasks;
mod setup;

use elections::Elections;
pub use labels::NodeLabels;
pub use setup::{Setup, Source};

/// How long `NodeGetInfo` may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// The wait before it is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// A watch that has failed for so long, although the server answers, does not recover by itself.
const STALE: Duration = Duration::from_secs(300);
/// Upstream's grace for a lease that could not be renewed.
const LEASE_GRACE: Duration = Duration::from_secs(20);

/// Why the loops do not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line contradicts itself.
    #[error("{0}")]
    Args(String),
    /// There is no API server to work with.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The driver can't be worked with.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// One of them ended.
    #[error("{role} ended: {why}")]
    Ended {
        /// Which.
        role: &'static str,
        /// Why.
        why: String,
    },
    /// Another process leads now.
    #[error("lease {0} was lost; another process may be doing this one's work")]
    Lost(String),
}

/// What can be seen of the loops from outside. Clones show the same.
#[derive(Clone)]
pub struct View(Arc<Seen>);

struct Seen {
    registry: Registry,
    metrics: Arc<Metrics>,
    counts: Counts,
    leaders: Mutex<Vec<(String, Leadership)>>,
}

/// What loops count that only they have.
#[derive(Default)]
struct Counts {
    capacity: capacity::Metrics,
    health: health::Conditions,
    orphans: orphans::Metrics,
    snapshot_controller: snapshot_controller::Metrics,
    provisioner: provisioner::Metrics,
    placement: placement::Metrics,
}

impl Counts {
    fn register(&self, registry: &mut Registry) {
        self.capacity.register(registry);
        self.health.register(registry);
        self.orphans.register(registry);
        self.snapshot_controller.register(registry);
        self.provisioner.register(registry);
        self.placement.register(registry);
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("View")
    }
}

impl View {
    /// Nothing has happened yet.
    pub fn new() -> Self {
        let metrics = Arc::new(Metrics::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let counts = Counts::default();
        counts.register(&mut registry);
        View(Arc::new(Seen {
            registry,
            metrics,
            counts,
            leaders: Mutex::default(),
        }))
    }

    /// Writes what was counted, as OpenMetrics text without its end.
    pub fn metrics(&self, text: &mut String) -> fmt::Result {
        encode_registry(text, &self.0.registry)
    }

    /// Whether leases are as they should be: a leader that could not renew its own has stopped.
    pub fn leaders(&self) -> Result<(), String> {
        let leaders = self
            .0
            .leaders
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (lease, leader) in leaders.iter() {
            if leader.overdue(LEASE_GRACE) {
                return Err(format!("lease {lease} is held but was not renewed in time"));
            }
        }
        Ok(())
    }

    fn add_leader(&self, lease: &str, leader: &Leadership) {
        let mut leaders = self
            .0
            .leaders
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        leaders.push((lease.to_owned(), leader.clone()));
    }
}

impl Default for View {
    fn default() -> Self {
        View::new()
    }
}

/// Runs what was picked until `stop` is set, or until one of them ends.
pub async fn run(mut setup: Setup, view: View, stop: CancellationToken) -> Result<(), Error> {
    setup.check().map_err(Error::Args)?;
    setup.driver = setup.driver.counted(&view.0.metrics);
    let mut roles = Roles::default();
    let checks = Checks::default();
    begin_for_kubelet(&setup, &checks, &stop, &mut roles);

    let begun = stop.child_token();
    let loops = {
        let (begun, view) = (begun.clone(), view.clone());
        begin_loops(setup, view, checks, begun)
    };
    let ended = tokio::select! {
        loops = loops => match loops {
            Ok(mut loops) => {
                let ended = tokio::select! {
                    () = stop.cancelled() => Ok(()),
                    ended = roles.next() => Err(ended),
                    ended = loops.next() => Err(ended),
                };
                begun.cancel();
                loops.finish().await;
                ended
            }
            Err(Error::Driver(DriverError::Stopped)) => Ok(()),
            Err(error) => Err(error),
        },
        ended = roles.next() => Err(ended),
        () = stop.cancelled() => Ok(()),
    };
    begun.cancel();
    if ended.is_ok() {
        roles.finish().await;
    }
    ended
}

/// Registration and liveness.
fn begin_for_kubelet(setup: &Setup, checks: &Checks, stop: &CancellationToken, roles: &mut Roles) {
    let (args, kubelet) = (&setup.args, &setup.args.kubelet);
    let endpoint = kubelet.kubelet_registration_path.clone();
    let endpoint = endpoint.or_else(|| setup.registration_endpoint.clone());
    let csi = setup.driver.csi();
    let serves_node = args.election.leader_tasks != LeaderTasks::Only;
    let registers = serves_node && args.controllers.has(Role::Registrar);
    if let Some((csi, endpoint)) = csi.zip(endpoint).filter(|_| registers) {
        let health = registrar::Health::default();
        let seen = health.clone();
        checks.add("registration", move || seen.check());
        let options = registrar::Options {
            registration_dir: kubelet.plugin_registration_path.clone(),
            endpoint,
            driver_name: None,
            health,
        };
        let registered = registrar::run(options, csi.clone(), stop.clone());
        roles.begin("the registrar", async {
            registered.await.map_err(|error| error.to_string())
        });
    }
    if args.controllers.has(Role::Liveness) {
        let address = SocketAddr::new(everywhere(), kubelet.health_port);
        let (csi, checks) = (csi.cloned(), checks.clone());
        let options = liveness::Options {
            address,
            probe_timeout: kubelet.probe_timeout,
        };
        let stop = stop.clone();
        roles.begin("the liveness endpoint", async move {
            let served = liveness::run(options, csi, checks, stop);
            served.await.map_err(|error| error.to_string())
        });
    }
}

/// All addresses of this machine: of both families where it has IPv6.
fn everywhere() -> IpAddr {
    match Path::new("/proc/net/if_inet6").exists() {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// The loops that work with the API server.
async fn begin_loops(
    setup: Setup,
    view: View,
    checks: Checks,
    stop: CancellationToken,
) -> Result<Roles, Error> {
    let mut roles = Roles::default();
    let any = controllers::any(&setup.args.controllers);
    if !any && setup.labels.is_none() {
        return Ok(roles);
    }
    let metrics = view.0.metrics.clone();
    let options = ClientOptions {
        kubeconfig: setup.args.api.kubeconfig.clone(),
    };
    let client = connect_counted(&options, metrics.clone()).await?;
    let limit = Limit::new(setup.args.api.kube_api_qps, setup.args.api.kube_api_burst);
    let kube = Kube::new(client.clone(), limit, metrics.clone(), "hostloop");
    if let Some(labels) = setup.labels.clone() {
        // Before the driver is asked where its node is: it may not know without them.
        let read = labels.run(kube.clone(), stop.clone());
        roles.begin("reading the node's labels", read);
    }
    if !any {
        return Ok(roles);
    }
    let driver = match setup.driver.clone() {
        Source::Asked(csi) => Driver::introduce(csi, &stop).await?,
        Source::Known(driver) => *driver,
    };
    metrics.introduce(&driver.name);
    let tasks = setup.args.election.leader_tasks;
    let node_deployment = setup.args.node_deployment.unwrap_or(setup.node_deployment);
    let scope = match node_deployment {
        _ if tasks == LeaderTasks::Only => Scope::Leader,
        false => Scope::Cluster,
        true => node_scope(&driver, setup.args.node_name.clone(), &stop).await?,
    };
    tracing::info!(
        driver = %driver.name, version = %driver.version, node = scope.node(),
        leader_tasks = ?tasks, "controlling"
    );
    let caches = match scope.node() {
        None => Caches::new(client.clone(), stop.clone()),
        Some(node) => Caches::of_node(client.clone(), stop.clone(), node)
            .with_contents(!setup.pools.are_told()),
    };
    let caches = Arc::new(caches.counted(metrics.clone()));
    watch_over(&checks, &caches, &kube);
    let (events, sending) =
        Events::start(client.clone(), &driver.name, metrics.clone(), stop.clone());
    roles.begin("telling events", async {
        sending.await;
        Ok(())
    });
    let mut elections = Elections::new(
        &setup.args,
        client,
        metrics.clone(),
        view.clone(),
        stop.clone(),
    );
    let leader = elections.of_nodes(&driver.name, &scope, &mut roles);
    if tasks == LeaderTasks::Only {
        let view = view.clone();
        checks.add("leader election", move || view.leaders());
    }
    if !sight::is_narrow(&setup.args, &leader) {
        caches.set_width(Width::Whole);
    }
    let context = Context {
        driver: Arc::new(driver),
        kube,
        caches,
        events,
        metrics,
        scope,
        pools: setup.pools.clone(),
        leader,
        room: Arc::default(),
        stop,
        common: setup.args.common(&setup.default_fstype),
    };
    let beginning = controllers::Beginning {
        args: &setup.args,
        context: &context,
        elections: &mut elections,
        roles: &mut roles,
        counts: &view.0.counts,
        inventory: &setup.inventory,
    };
    beginning.all();
    Ok(roles)
}

/// Kubelet starts the process anew if a watch has failed for long although the server answers.
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
                Err(error) => warn_of(&error),
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

fn warn_of(error: &Failure) {
    tracing::warn!(%error, "asking the driver for its node");
}

/// What runs until it is told to stop.
#[derive(Default)]
struct Roles(JoinSet<(&'static str, Result<(), String>)>);

impl Roles {
    fn begin(
        &mut self,
        role: &'static str,
        work: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        self.0.spawn(async move {
            // A task of its own, so that its panic is told with its name.
            let ended = tokio::spawn(work).await;
            (
                role,
                ended.unwrap_or_else(|panicked| Err(panicked.to_string())),
            )
        });
    }

    /// The first to end.
    async fn next(&mut self) -> Error {
        match self.0.join_next().await {
            Some(Ok((role, ended))) => Error::Ended {
                role,
                why: ended
                    .err()
                    .unwrap_or_else(|| "nothing told it to".to_owned()),
            },
            Some(Err(error)) => Error::Ended {
                role: "a role",
                why: error.to_string(),
            },
            None => std::future::pending().await,
        }
    }

    /// Waits until all have ended, as they were told to.
    async fn finish(&mut self) {
        while let Some(ended) = self.0.join_next().await {
            if let Ok((role, Err(why))) = ended {
                tracing::warn!(role, why, "did not end well");
            }
        }
    }
}
