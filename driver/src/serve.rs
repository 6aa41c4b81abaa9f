//! `hostloop serve`, `run`, `controllers`, `proxy` and `fault-disks`: what runs, in which order it starts, and how
//! it stops.
//!
//! Start: check the arguments and the machine, then open and recover the pools in parallel, for at
//! most `--pool-open-timeout`. Then open the socket: from here on, every client that can connect
//! gets an answer. Then register the driver, while the controllers fill their caches.
//!
//! Stop: first remove the registration, give up the leases and end the controllers. On SIGTERM or
//! SIGINT, then remove the socket and finish calls under way within [`GRACE`]. At the end, faults that
//! block others end, also beside calls that hang. The next start takes care of unfinished work, since
//! disk and kernel show how far it got. Mounts and loop devices outlive the process either way.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use hostloop_controllers::cli::Args as ControllerArgs;
use hostloop_controllers::grpc_server;
use hostloop_controllers::socket::{self, Name};
use hostloop_controllers::tasks::Tasks;
use hostloop_events::otlp::Exporter;
use hostloop_events::serve::Process;

use crate::cli::{ControllersArgs, ProxyArgs, RunArgs, ServeArgs, WatchArgs};
use crate::controller::Controller;
use crate::faults;
use crate::grpc::Server;
use crate::kernel::linux::{Linux, LoopNotices, MountQueries};
use crate::node::Node;
use crate::pool_faults::PoolFaults;
use crate::rpc_faults::FaultInjector;
use crate::storage::Pools;

mod config;
pub mod controllers;
mod cuts;
mod descriptors;
mod error;
mod events;
mod fault_disks;
mod http_endpoint;
mod logging;
mod otlp;
mod preflight;
mod process;
mod proxy;
mod signals;
mod topology_flags;
pub mod upkeep;

use config::ServeSettings;
use controllers::{Controllers, RunningControllers};
use http_endpoint::ReportedComponents;
use process::{GRACE, fault_injector, follow_faults, listen, show};
use signals::Signals;

pub use error::Error;
pub use fault_disks::fault_disks;

/// Maximum number of blocking threads. `grpc::pool_threads` limits how many are used. This limit is
/// far above that, so threads held by a hanging pool never make other work wait.
const BLOCKING_THREADS: usize = 4096;

/// How long the end of faults may take after [`GRACE`]. Both end before Kubernetes kills.
const UNBLOCK: Duration = Duration::from_secs(3);

/// Serves until a signal comes.
pub fn serve(args: &ServeArgs) -> Result<(), Error> {
    serve_with(args, &[], None)
}

/// Serves, with the controllers beside, until a signal comes.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    let mut serve = args.serve.clone();
    // The CSI services and the controllers use one name for the node.
    serve.node_id = serve.node_id.or_else(|| args.controllers.node_name.clone());
    let labels = &args.topology_from_node_labels;
    serve_with(&serve, labels, Some(&args.controllers))
}

/// Runs the controllers in front of a driver until a signal comes.
pub fn controllers(args: &ControllersArgs) -> Result<(), Error> {
    without_pools(&args.watch, controllers::alone(args))
}

/// Passes calls to a driver until a signal comes. Needs neither root nor pools.
pub fn proxy(args: &ProxyArgs) -> Result<(), Error> {
    without_pools(&args.watch, proxy::run(args))
}

fn without_pools(
    watch: &WatchArgs,
    work: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    logging::start(&watch.log)?;
    descriptors::raise();
    let runtime = runtime()?;
    let ran = runtime.block_on(work);
    runtime.shutdown_background();
    ran
}

/// A runtime with one thread for sockets, timers and the controllers' decisions, and other threads
/// for blocking work. Several of the former would mostly wake each other.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("hostloop")
        .enable_all()
        .build()
        .map_err(|error| Error::Start("starting threads", error))
}

fn serve_with(
    args: &ServeArgs,
    labels: &[String],
    controllers: Option<&ControllerArgs>,
) -> Result<(), Error> {
    logging::start(&args.watch.log)?;
    descriptors::raise();
    let settings = ServeSettings::read(args, labels, preflight::hostname)?;
    // Before the pools are touched: another driver may be using them.
    socket::check(&settings.endpoint)?;
    let kernel = Linux::following(MountQueries::default());
    preflight::check(kernel.missing(), &kernel, &settings)?;
    let process = Process {
        process: "node".to_owned(),
        node: Some(settings.node_id.clone()),
        version: settings.identity.vendor_version.clone(),
    };
    let exporter = otlp::prepare(&args.watch, &process)?;
    let rules = settings.fault_rules.as_deref();
    let faults = fault_injector(rules, Some(&settings.node_id))?;

    let pools = Pools::open_within(
        &settings.pools,
        settings.options.clone(),
        Arc::new(kernel),
        args.pool_open_timeout,
    )?;

    let runtime = runtime()?;
    let outputs = Outputs {
        watch: &args.watch,
        process,
        exporter,
        faults,
    };
    let served = runtime.block_on(work(settings, outputs, pools, controllers.cloned()));
    // Work that outlasted its grace must not hold the process.
    runtime.shutdown_background();
    served
}

/// What shows the process to others.
struct Outputs<'a> {
    watch: &'a WatchArgs,
    process: Process,
    exporter: Option<Exporter>,
    faults: Option<Arc<FaultInjector>>,
}

async fn work(
    settings: ServeSettings,
    outputs: Outputs<'_>,
    pools: Arc<Pools>,
    controllers: Option<ControllerArgs>,
) -> Result<(), Error> {
    let mut signals = Signals::install()?;
    let stop = CancellationToken::new();
    let mut roles = Tasks::default();

    let node = Arc::new(Node::new(pools.clone(), settings.node));
    let controller = Controller::new(pools.clone(), settings.controller).with_anchors(node.clone());
    let identity = settings.identity.clone();
    let server = Server::new(settings.identity, Arc::new(controller), node.clone())
        .with_faults(outputs.faults.clone());

    let pool_faults = Arc::new(PoolFaults::new(pools.clone(), server.allows_faults()));

    let controllers = controllers.map(|args| {
        let labels = controllers::labels(&settings.topology, &settings.node_id, &args);
        Controllers::beside(&server, args, &settings.endpoint, labels)
    });
    let Outputs {
        watch,
        process,
        exporter,
        faults,
    } = outputs;
    follow_faults(faults.as_ref(), &stop, &mut roles);
    let shown = ReportedComponents {
        services: Some(server.shown()),
        controllers: controllers.as_ref().map(Controllers::telemetry),
        dropped: exporter.as_ref().map(Exporter::dropped),
        faults,
        pool_faults: Some(pool_faults.clone()),
    };
    show(settings.http, shown, &stop, &mut roles).await?;
    upkeep::start(&pools, node, server.blocking(), &stop, &mut roles);
    upkeep::start_expiry(&server, &stop, &mut roles);
    upkeep::tend_faults(&pool_faults, server.blocking(), &stop, &mut roles);

    if let Err(error) = follow_detached(&pools) {
        tracing::warn!(%error, "the kernel's notices of loop devices can't be followed");
    }
    otlp::start(exporter, &stop, &mut roles);
    let events = events::start(
        &watch.events,
        Some(&settings.endpoint),
        process,
        &stop,
        &mut roles,
    )?;

    let cuts = cuts::start(&server, &settings.endpoint, &stop, &mut roles);

    let name = start_services(&settings.endpoint, &server, &stop, &mut roles)?;
    tracing::info!(
        socket = %settings.endpoint.display(), driver = %identity.name,
        version = %identity.vendor_version, node = %settings.node_id, "serving"
    );

    let mut controllers = controllers.map(Controllers::start);
    let served = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, in_flight = server.locks().in_flight(), "stopping");
            Ok(())
        }
        ended = roles.next() => Err(ended.into()),
        ended = controllers::ended(&mut controllers) => Err(ended),
    };
    let finished = finish(
        controllers,
        (name, events, cuts),
        &server,
        pool_faults,
        &stop,
        &mut roles,
    );
    tokio::select! {
        () = finished => tracing::info!("stopped"),
        () = tokio::time::sleep(GRACE) => unfinished(&server, "the grace period ended").await,
        signal = signals.next() => unfinished(&server, signal).await,
    }
    served
}

/// Opens the socket and starts the CSI services on it.
fn start_services(
    endpoint: &Path,
    server: &Server,
    stop: &CancellationToken,
    roles: &mut Tasks,
) -> Result<Name, Error> {
    let (listener, name) = listen(endpoint)?;
    let (server, stop) = (server.clone(), stop.clone());
    roles.start("the CSI services", async move {
        let connections = grpc_server::connections(listener, descriptors::csi_connections());
        let served = server.serve(connections, stop.cancelled()).await;
        served.map_err(|error| error.to_string())
    });
    Ok(name)
}

/// Ends everything, and waits until calls under way are finished.
async fn finish(
    controllers: Option<RunningControllers>,
    sockets: (Name, Option<Name>, Option<Name>),
    server: &Server,
    pool_faults: Arc<PoolFaults>,
    stop: &CancellationToken,
    roles: &mut Tasks,
) {
    let finished = async {
        // The controllers end first, while the services still answer. Their end also unregisters the
        // driver, so that kubelet starts no new calls.
        if let Some(controllers) = controllers {
            controllers.finish().await;
        }
        drop(sockets);
        stop.cancel();
        // Calls that wait for others end now, and the server waits only for those that run.
        server.locks().close();
        roles.finish().await;
        server.locks().drained().await;
        faults::unblock_all(server.pools(), server.blocking()).await;
    };
    // Neither waits for the other: calls under way may wait for a pool that hangs by a fault, and the end
    // of a fault for a disk that hangs without one.
    tokio::join!(pool_faults.end_all(server.blocking()), finished);
}

/// Ends what must not outlast the process, although calls are under way.
async fn unfinished(server: &Server, why: &'static str) {
    // No fault begins any more.
    server.locks().close();
    let unblocked = faults::unblock_all(server.pools(), server.blocking());
    if tokio::time::timeout(UNBLOCK, unblocked).await.is_err() {
        tracing::warn!(
            "the filesystem of a volume can't be thawed, or its fault disk does not answer: the next \
             start thaws it"
        );
    }
    tracing::warn!(
        why,
        in_flight = server.locks().in_flight(),
        "stopped before every call was finished; the next start completes or undoes them"
    );
}

/// Announces what a detached loop device frees, on a thread that ends with the process. The last
/// user of a device may be a container with a private copy of a mount, and then no call shows its
/// end. Without the kernel's notices, whatever waits is tried again after its backoff.
fn follow_detached(pools: &Arc<Pools>) -> io::Result<()> {
    let (notices, pools) = (LoopNotices::open()?, Arc::downgrade(pools));
    let thread = std::thread::Builder::new().name("hostloop-notices".to_owned());
    thread.spawn(move || announce_each(&notices, &pools))?;
    Ok(())
}

/// Announces what each notice is about, until the pools are gone or the notices can't be read.
fn announce_each(notices: &LoopNotices, pools: &Weak<Pools>) {
    loop {
        let changed = match notices.changed() {
            Ok(changed) => changed,
            Err(error) => {
                tracing::warn!(%error, "the kernel's notices of loop devices can't be read");
                return;
            }
        };
        let Some(pools) = pools.upgrade() else {
            return;
        };
        if pools.freed().awaits_devices() {
            pools.announce_detached(changed.as_deref());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use hostloop_controllers::api::claim_fault::ClaimFault;
    use hostloop_fake_kernel::Model;
    use parking_lot::Mutex;

    use super::*;
    use crate::testkit::{Configs, Rig, assert_soon, ext4, mount};

    /// A call hangs, or a filesystem does.
    #[tokio::test]
    async fn a_process_that_ends_before_its_calls_thaws_what_faults_have_frozen() {
        let rig = Rig::<Model>::new();
        let minors = ["a", "b"].map(|at| {
            let id = rig.staged(ext4(), at, &mount("ext4"));
            let requested = ClaimFault::parse("frozen").unwrap();
            faults::reconcile(&rig.node.pools, &id.to_string(), Some(&requested)).unwrap();
            rig.device(id).minor
        });
        let are_frozen = || minors.map(|minor| rig.kernel.is_frozen(minor));
        assert_eq!(are_frozen(), [true, true]);
        let hangs = rig.staging("a").canonicalize().unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let ended = Mutex::new(ended);
        rig.kernel.shared_hook("thaw", move |path| {
            if path == hangs {
                let _ = ended.lock().recv();
            }
            Ok(())
        });
        let server = Configs::default().server(&rig.node.pools);
        unfinished(&server, "a test").await;
        assert_eq!(are_frozen(), [true, false]);
        drop(end);
        assert_soon([false, false], are_frozen);
    }
}
