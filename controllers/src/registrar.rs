//! Registers a driver with the kubelet of its node.
//!
//! Kubelet watches a directory for sockets. It asks each new socket which plugin it serves, then
//! reports whether the registration succeeded. It unregisters the plugin when the socket file is
//! gone. So the registrar's socket exists from the time the driver answers until the stop. After a
//! restart, kubelet asks again. If something else removes the socket file, the registrar creates it
//! again. It does so itself if the cluster has lost what kubelet wrote ([`lost`]).

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::registration::registration_server::{Registration, RegistrationServer};
use hostloop_proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use hostloop_report::driver_name;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, async_trait};

use crate::connections::ConnectionSlots;
use crate::csi::Csi;
use crate::grpc_server::{self, Admitted};
use crate::socket;

mod authority_rewrite;
mod health;
pub(crate) mod lost;
mod registration_socket;
mod stream;

pub use health::Health;
use registration_socket::RegistrationSocket;
use stream::RewrittenStream;

/// The plugin type of CSI drivers.
const TYPE: &str = "CSIPlugin";

/// The CSI version for kubelet, which treats every 1.x alike.
const VERSIONS: [&str; 1] = ["1.0.0"];

/// Timeout of each call that asks the driver for its name and readiness.
const ASK_DEADLINE: Duration = Duration::from_secs(5);

/// The wait before the driver is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How often the socket file is checked.
const LOOK: Duration = Duration::from_secs(2);

/// How long to wait for a predecessor that still serves the socket.
const PREDECESSOR: Duration = Duration::from_secs(30);

/// How long calls and idle connections may delay the end.
const GRACE: Duration = Duration::from_secs(2);

/// The most connections. Kubelet uses one.
const CONNECTIONS: usize = 16;

/// Options of the registration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory kubelet watches (`--plugin-registration-path`).
    pub registration_dir: PathBuf,
    /// The driver's socket path on the host (`--kubelet-registration-path`).
    pub endpoint: PathBuf,
    /// Publishes the state of the registration.
    pub health: Health,
}

/// Why a driver is not registered, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Socket(#[from] socket::Error),
    #[error("the CSI driver's name {name:?} {why}")]
    Name { name: String, why: String },
    #[error("kubelet refused to register driver {driver}: {message}")]
    Refused { driver: String, message: String },
    #[error("registration of driver {driver}: {source}")]
    Serve {
        driver: String,
        source: tonic::transport::Error,
    },
}

/// Registers the driver when it is ready, and keeps it registered until `stop`.
///
/// After an error the driver is not registered, and retrying here does not help. The process must
/// end, so that it restarts with changed conditions.
pub async fn run(options: Options, csi: Csi, stop: CancellationToken) -> Result<(), Error> {
    let Some(driver) = stop.run_until_cancelled(ready(&csi)).await else {
        return Ok(());
    };
    // The name becomes part of a file name.
    driver_name::check(&driver).map_err(|why| Error::Name {
        name: driver.clone(),
        why,
    })?;
    let path = options.registration_dir.join(format!("{driver}-reg.sock"));
    let Some(bound) = stop.run_until_cancelled(first(&path)).await else {
        return Ok(());
    };
    let bound = bound?;
    options.health.listens(bound.name());
    tracing::info!(driver, socket = %path.display(), "waiting for kubelet to register the driver");
    let ended = serve(&options, &driver, bound, &stop).await;
    options.health.stopped();
    ended
}

/// Waits until the driver is ready, and returns its name.
async fn ready(csi: &Csi) -> String {
    let mut logged = String::new();
    loop {
        match ask(csi).await {
            Ok(name) => return name,
            Err(why) if why != logged => {
                tracing::info!(why, "the driver is not ready to be registered yet");
                logged = why;
            }
            Err(_) => {}
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

async fn ask(csi: &Csi) -> Result<String, String> {
    let info = csi
        .get_plugin_info(csi::GetPluginInfoRequest {}, ASK_DEADLINE)
        .await;
    let info = info.map_err(|error| error.to_string())?;
    let probe = csi.probe(csi::ProbeRequest {}, ASK_DEADLINE).await;
    if probe.map_err(|error| error.to_string())?.ready == Some(false) {
        return Err("Probe: not ready".to_owned());
    }
    // Kubelet calls NodeGetInfo next, and rejects a driver that can't answer yet.
    let node = csi
        .node_get_info(csi::NodeGetInfoRequest {}, ASK_DEADLINE)
        .await;
    match node {
        Err(error) if error.code() == Code::Unavailable => Err(error.to_string()),
        _ => Ok(info.name),
    }
}

/// Creates the socket, after waiting for a predecessor that may be ending.
async fn first(path: &Path) -> Result<RegistrationSocket, socket::Error> {
    let patience = tokio::time::Instant::now() + PREDECESSOR;
    loop {
        match RegistrationSocket::new(path) {
            Err(socket::Error::Served(_)) if tokio::time::Instant::now() < patience => {
                tracing::info!(socket = %path.display(), "another process still serves the socket");
                tokio::time::sleep(ASK_AGAIN).await;
            }
            done => return done,
        }
    }
}

/// Serves the socket until `stop`, kubelet's rejection, or an error.
async fn serve(
    options: &Options,
    driver: &str,
    bound: RegistrationSocket,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let (verdicts, mut refused) = mpsc::channel(1);
    let service = Service {
        info: PluginInfo {
            r#type: TYPE.to_owned(),
            name: driver.to_owned(),
            endpoint: options.endpoint.to_string_lossy().into_owned(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        },
        health: options.health.clone(),
        refused: verdicts,
    };
    let (connections, incoming) = mpsc::channel(CONNECTIONS);
    let ending = CancellationToken::new();
    let server = grpc_server::builder()
        .add_service(RegistrationServer::new(service))
        .serve_with_incoming_shutdown(
            ReceiverStream::new(incoming).map(Ok::<_, io::Error>),
            ending.clone().cancelled_owned(),
        );
    let mut server = pin!(server);
    // Ending removes the socket file before it waits for calls.
    let ended = tokio::select! {
        () = stop.cancelled() => Ok(()),
        Some(message) = refused.recv() => Err(Error::Refused {
            driver: driver.to_owned(),
            message,
        }),
        lost = accept(&options.health, bound, connections) => Err(lost),
        served = &mut server => {
            return served.map_err(|source| Error::Serve { driver: driver.to_owned(), source });
        }
    };
    ending.cancel();
    // Kubelet's last call is answered, but an idle connection does not delay the end.
    let _ = tokio::time::timeout(GRACE, server).await;
    ended
}

/// Accepts connections, and checks the socket file. Returns if another process took the path.
async fn accept(
    health: &Health,
    mut bound: RegistrationSocket,
    connections: mpsc::Sender<RewrittenStream<Admitted<tokio::net::UnixStream>>>,
) -> Error {
    let slots = ConnectionSlots::new(CONNECTIONS);
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = bound.accept() => match accepted {
                // A client that can't be served now connects again.
                Ok(stream) => {
                    if let Some(slot) = slots.admit(None).await {
                        let stream = RewrittenStream::new(Admitted::new(stream, slot));
                        let _ = connections.try_send(stream);
                    }
                }
                Err(error) => {
                    // Most likely the process has no free file descriptors. Waiting gives it time
                    // to recover.
                    tracing::warn!(%error, "can't take a connection to the registration socket");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            },
            () = health.asked_again() => {
                let path = bound.name().path().to_owned();
                // Kubelet notices that the file is another one.
                drop(bound);
                bound = match RegistrationSocket::new(&path) {
                    Ok(again) => again,
                    Err(error) => return error.into(),
                };
                health.listens(bound.name());
            }
            _ = look.tick() => {
                if bound.name().is_there() {
                    continue;
                }
                let path = bound.name().path().to_owned();
                match RegistrationSocket::new(&path) {
                    Ok(again) => {
                        tracing::warn!(socket = %path.display(), "the registration socket was gone; it is made again");
                        health.listens(again.name());
                        bound = again;
                    }
                    Err(served @ socket::Error::Served(_)) => return served.into(),
                    Err(error) => tracing::warn!(%error, "the registration socket is gone"),
                }
            }
        }
    }
}

/// The gRPC service that kubelet calls.
pub(crate) struct Service {
    info: PluginInfo,
    health: Health,
    refused: mpsc::Sender<String>,
}

#[async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        tracing::debug!("kubelet asks who the driver is");
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = self.info.name, "kubelet has registered the driver");
            self.health.registered();
        } else {
            // A full channel already holds a rejection, and one is enough.
            let _ = self.refused.try_send(status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
pub(crate) mod tests;
