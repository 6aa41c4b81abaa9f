//! Runs the Kubernetes controllers, in the driver's process or alone.

use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hostloop_controllers::claim_faults::VolumeFaults;
use hostloop_controllers::cli::Args;
use hostloop_controllers::client::kube::ClientError;
use hostloop_controllers::csi::{Csi, Driver, Freed, FreedSignal, Pools as OwnPools};
use hostloop_controllers::manager::{self as controllers, NodeLabels, Setup, Source, Telemetry};
use hostloop_controllers::orphaned_volumes::{Inventory, InventoryEntry};
use hostloop_controllers::own_pod::OwnPod;
use hostloop_controllers::tasks::{Ended, Tasks};
use hostloop_events::otlp::Exporter;
use hostloop_events::serve::Process;
use kube::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::http_endpoint::ReportedComponents;
use super::process::{GRACE, show};
use super::signals::Signals;
use super::{events, otlp};
use crate::cli::ControllersArgs;
use crate::controller::capabilities;
use crate::csi::identity;
use crate::csi::topology::Topology;
use crate::faults;
use crate::grpc::Server;
use crate::storage::{self, Pools, VolumeRecord};

/// The controllers, ready to start.
pub(super) struct Controllers {
    setup: Setup,
    telemetry: Telemetry,
}

/// How controllers reach the API server, and as whom.
pub struct ApiAccess {
    /// Creates the client, if a controller needs it.
    pub client: BoxFuture<'static, Result<Client, ClientError>>,
    /// The pod of this process.
    pub pod: OwnPod,
}

impl ApiAccess {
    /// Access by `--kubeconfig` or the pod's service account, as the pod of the environment.
    fn from_environment(args: &Args, telemetry: &Telemetry) -> Self {
        let client = controllers::connect(args.api.kubeconfig.clone(), telemetry);
        ApiAccess {
            client: client.boxed(),
            pod: OwnPod::from_environment(),
        }
    }
}

/// The setup of controllers that call a server in this process. They register the driver with the
/// socket `endpoint`.
pub fn setup_with_driver(
    server: &Server,
    args: Args,
    endpoint: &Path,
    labels: Option<NodeLabels>,
    access: ApiAccess,
) -> Setup {
    let pools = server.pools().clone();
    let freed = FreedSignal::with_driver();
    pools.freed().listen({
        let freed = freed.clone();
        move |announced| freed.announce(&announced.into())
    });
    Setup {
        args,
        client: access.client,
        pod: access.pod,
        // The driver in this process chooses the default.
        default_fstype: String::new(),
        driver: Source::Asked(Csi::within(server.routes())),
        node_deployment: true,
        registration_endpoint: Some(endpoint.to_owned()),
        freed,
        inventory: inventory(pools.clone()),
        faults: volume_faults(server),
        pools: OwnPools::reported(move || identities(&pools)),
        labels,
    }
}

/// The setup of controllers without a driver in their process.
pub fn setup_without_driver(args: &ControllersArgs, access: ApiAccess) -> Setup {
    Setup {
        args: args.controllers.clone(),
        client: access.client,
        pod: access.pod,
        default_fstype: args.default_fstype.clone(),
        driver: source(args),
        node_deployment: false,
        registration_endpoint: None,
        pools: OwnPools::default(),
        freed: FreedSignal::default(),
        inventory: Inventory::default(),
        faults: VolumeFaults::default(),
        labels: None,
    }
}

impl Controllers {
    /// Sets up controllers that call a server in this process.
    pub(super) fn beside(
        server: &Server,
        args: Args,
        endpoint: &Path,
        labels: Option<NodeLabels>,
    ) -> Self {
        let telemetry = Telemetry::new();
        let access = ApiAccess::from_environment(&args, &telemetry);
        Controllers {
            setup: setup_with_driver(server, args, endpoint, labels, access),
            telemetry,
        }
    }

    pub(super) fn telemetry(&self) -> Telemetry {
        self.telemetry.clone()
    }

    pub(super) fn start(self) -> RunningControllers {
        let stop = CancellationToken::new();
        let task = tokio::spawn(controllers::run(self.setup, self.telemetry, stop.clone()));
        RunningControllers { stop, task }
    }
}

/// The running controllers.
pub(super) struct RunningControllers {
    stop: CancellationToken,
    task: JoinHandle<Result<(), controllers::Error>>,
}

impl RunningControllers {
    /// Stops the controllers and waits until they have ended.
    pub(super) async fn finish(self) {
        self.stop.cancel();
        if self.task.is_finished() {
            return;
        }
        match self.task.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the controllers ended with an error"),
            Err(panicked) => tracing::warn!(%panicked, "the controllers ended with an error"),
        }
    }
}

/// Resolves when the controllers end without a request to stop; never if there are none.
pub(super) async fn ended(controllers: &mut Option<RunningControllers>) -> Error {
    let Some(controllers) = controllers else {
        return std::future::pending().await;
    };
    match (&mut controllers.task).await {
        Ok(Err(error)) => error.into(),
        Ok(Ok(())) => Ended {
            role: "the controllers",
            why: "they stopped without a request".to_owned(),
        }
        .into(),
        Err(panicked) => Ended {
            role: "the controllers",
            why: panicked.to_string(),
        }
        .into(),
    }
}

/// The labels of this node that the controllers must read for the driver, if any.
pub fn labels(topology: &Topology, node_id: &str, args: &Args) -> Option<NodeLabels> {
    let keys = topology.labels();
    if keys.is_empty() {
        return None;
    }
    let topology = topology.clone();
    let keys = keys.iter().cloned().collect();
    let node = args.node_name.as_deref().unwrap_or(node_id);
    Some(NodeLabels::new(node, keys, move |labels| {
        topology.take(labels).map_err(|moved| moved.to_string())
    }))
}

/// The identities of all known pools, including missing ones that the driver saw before.
fn identities(pools: &Pools) -> Vec<String> {
    let slots = pools.slots().into_iter();
    slots
        .filter_map(|slot| slot.id)
        .map(|id| id.to_string())
        .collect()
}

impl From<storage::Freed> for Freed {
    fn from(freed: storage::Freed) -> Self {
        match freed {
            storage::Freed::Volume(handle) => Freed::Volume(handle),
            storage::Freed::Room => Freed::Room,
        }
    }
}

/// The faults of the server's volumes.
fn volume_faults(server: &Server) -> VolumeFaults {
    let (driver, pools) = (server.clone(), server.pools().clone());
    VolumeFaults::within(
        server.allows_faults(),
        move |request| driver.change_fault(request).boxed(),
        move || faults::faulty(&pools),
    )
}

/// Volume facts that CSI does not report. All of them are in memory.
fn inventory(pools: Arc<Pools>) -> Inventory {
    Inventory::reported(move || {
        let volumes = pools.volumes();
        Ok(volumes
            .iter()
            .map(|record| inventory_entry(record))
            .collect())
    })
}

fn inventory_entry(record: &VolumeRecord) -> InventoryEntry {
    InventoryEntry {
        id: record.id.to_string(),
        name: record.name.to_string(),
        is_empty: record.is_empty(),
        staged: record.stage.is_some(),
        shared: record.is_shared(),
        inline: record.inline.is_some(),
    }
}

/// The driver at the socket or, given a driver name, this program's own driver, which a leader need
/// not call. The driver's feature flags don't matter to a leader.
fn source(args: &ControllersArgs) -> Source {
    match &args.driver_name {
        None => Source::Asked(Csi::at_socket(&args.csi_address)),
        Some(name) => Source::Known(Box::new(Driver::with(
            Csi::none(),
            name,
            &identity::ALWAYS,
            &capabilities::ALWAYS,
            &capabilities::GROUP,
        ))),
    }
}

/// Runs `hostloop controllers`.
pub(super) async fn alone(args: &ControllersArgs) -> Result<(), Error> {
    let mut signals = Signals::install()?;
    let stop = CancellationToken::new();
    let mut roles = Tasks::default();
    let telemetry = Telemetry::new();
    let access = ApiAccess::from_environment(&args.controllers, &telemetry);
    let controllers = Controllers {
        setup: setup_without_driver(args, access),
        telemetry,
    };
    let process = Process {
        process: "controller".to_owned(),
        node: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let exporter = otlp::prepare(&args.watch, &process)?;
    let dropped = exporter.as_ref().map(Exporter::dropped);
    let shown = ReportedComponents {
        services: None,
        controllers: Some(controllers.telemetry()),
        dropped,
        faults: None,
        pool_faults: None,
    };
    let address = args.watch.http_endpoint.as_ref().map(ToString::to_string);
    show(address, shown, &stop, &mut roles).await?;
    otlp::start(exporter, &stop, &mut roles);
    let _events = events::start(&args.watch.events, None, process, &stop, &mut roles)?;
    let socket = args
        .driver_name
        .is_none()
        .then(|| args.csi_address.display());
    tracing::info!(
        csi = socket.map(tracing::field::display),
        "starting the controllers"
    );
    let mut controllers = Some(controllers.start());
    let ran = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping");
            Ok(())
        }
        ended = roles.next() => Err(ended.into()),
        ended = ended(&mut controllers) => Err(ended),
    };
    let finished = async {
        if let Some(controllers) = controllers {
            controllers.finish().await;
        }
        stop.cancel();
        roles.finish().await;
    };
    tokio::select! {
        () = finished => tracing::info!("stopped"),
        () = tokio::time::sleep(GRACE) => tracing::warn!("stopped before all was finished"),
        signal = signals.next() => tracing::warn!(signal, "stopped before all was finished"),
    }
    ran
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{NewVolume, Source};
    use crate::testkit::{Site, new};

    /// An unused copy has data, too: that of its source.
    #[test]
    fn only_a_volume_without_source_is_empty() {
        let mut site = Site::fake(&["a"]);
        let original = site.make("original");
        let snapshot = site.snapshot(&original, "snapshot");
        let sources = [Source::Snapshot(snapshot.id), Source::Volume(original.id)];
        for source in sources {
            site.create(NewVolume {
                source: Some(source),
                ..new(&format!("{source:?}"))
            });
        }
        let used = site.make("used");
        site.update(used.id, |record| record.fresh = false);
        for _ in 0..2 {
            let volumes = site.pools().volumes();
            let empty = volumes
                .iter()
                .filter(|volume| inventory_entry(volume).is_empty);
            assert_eq!(
                empty.map(|volume| volume.id).collect::<Vec<_>>(),
                [original.id]
            );
            site.open();
        }
    }
}
