//! Makes a driver known to the kubelet of its node.
//!
//! Kubelet watches a directory for sockets, asks each that appears who it is, tells it how its
//! registration went, and drops the plugin when the socket's file is gone. So ours is there from
//! when the driver answers until it is to stop, and no longer. Kubelet asks again by itself after
//! it was restarted; should the file have gone from under us meanwhile, it is made again.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::registration::registration_server::{Registration, RegistrationServer};
use hostloop_proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, async_trait};

use crate::runtime::csi::Csi;

mod authority_rewrite;
mod health;
mod socket;
mod stream;

pub use health::{Health, Verdict};
use socket::Bound;
use stream::AuthorityRewrite;

/// The kind of plugin a CSI driver is.
const TYPE: &str = "CSIPlugin";

/// The version of the CSI that kubelet looks for: any 1.x is one to it.
const VERSIONS: [&str; 1] = ["1.0.0"];

/// How long the driver may take to say who it is, before it is asked again.
const ASK_DEADLINE: Duration = Duration::from_secs(5);

/// How long until it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How often the socket's file is looked after.
const LOOK: Duration = Duration::from_secs(2);

/// How long a predecessor that still serves the socket may take to go.
const PREDECESSOR: Duration = Duration::from_secs(30);

/// How long calls and idle connections may hold up the end.
const GRACE: Duration = Duration::from_secs(2);

/// Connections that wait to be served. Kubelet has one.
const CONNECTIONS: usize = 4;

/// How to register a driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory kubelet watches (`--plugin-registration-path`).
    pub registration_dir: PathBuf,
    /// The driver's socket, as kubelet sees it (`--kubelet-registration-path`).
    pub endpoint: PathBuf,
    /// The driver that is expected to answer, if that is known beforehand.
    pub driver_name: Option<String>,
    /// What others learn of the registration by.
    pub health: Health,
}

/// Why a driver is not registered, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket can't have this path.
    #[error("registration socket {path}: {why}")]
    Path {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The driver's name can't be used.
    #[error("the driver calls itself {name:?}: {why}")]
    Name {
        /// What it answered.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Another process serves the socket.
    #[error("registration socket {0} is served by another process; stop that one first")]
    Served(PathBuf),
    /// What lies there is no socket.
    #[error("{0} exists and is no socket; it is left as it is")]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("{op} {path}: {source}")]
    Io {
        /// The call.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Kubelet does not want the driver.
    #[error("kubelet refused to register driver {driver}: {message}")]
    Refused {
        /// The driver.
        driver: String,
        /// What kubelet says.
        message: String,
    },
    /// The service ended.
    #[error("registration of driver {driver}: {source}")]
    Serve {
        /// The driver.
        driver: String,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// Registers the driver as soon as it is ready, and keeps it registered until told to stop.
///
/// An error means that it is not, and that trying again here won't help: the process is to end, so
/// that it is started anew with what may have changed.
pub async fn run(options: Options, csi: Csi, stop: CancellationToken) -> Result<(), Error> {
    let Some(driver) = stop.run_until_cancelled(ready(&csi)).await else {
        return Ok(());
    };
    check_name(&driver, options.driver_name.as_deref())?;
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

/// Waits until the driver is ready. Its name.
async fn ready(csi: &Csi) -> String {
    let mut told = String::new();
    loop {
        match ask(csi).await {
            Ok(name) => return name,
            Err(why) if why != told => {
                tracing::info!(why, "the driver is not ready to be registered yet");
                told = why;
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
    // Kubelet asks this next, and refuses a driver that can't tell yet.
    let node = csi
        .node_get_info(csi::NodeGetInfoRequest {}, ASK_DEADLINE)
        .await;
    match node {
        Err(error) if error.code() == Code::Unavailable => Err(error.to_string()),
        _ => Ok(info.name),
    }
}

/// Whether the driver is the expected one, and its name can be part of a file's.
fn check_name(name: &str, expected: Option<&str>) -> Result<(), Error> {
    let bad = |why: String| Error::Name {
        name: name.to_owned(),
        why,
    };
    if let Some(expected) = expected.filter(|expected| *expected != name) {
        return Err(bad(format!("{expected} is expected")));
    }
    let letters = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    let ends = [name.bytes().next(), name.bytes().last()];
    let ends = ends
        .iter()
        .all(|end| end.is_some_and(|b| b.is_ascii_alphanumeric()));
    if !letters || !ends {
        let rule = "a name has letters, digits, `-` and `.`, and begins and ends with one of the \
                    former two";
        return Err(bad(rule.to_owned()));
    }
    Ok(())
}

/// The socket, once a predecessor that may be on its way out is gone.
async fn first(path: &Path) -> Result<Bound, Error> {
    let patience = tokio::time::Instant::now() + PREDECESSOR;
    loop {
        match Bound::new(path).await {
            Err(Error::Served(_)) if tokio::time::Instant::now() < patience => {
                tracing::info!(socket = %path.display(), "another process still serves the socket");
                tokio::time::sleep(ASK_AGAIN).await;
            }
            done => return done,
        }
    }
}

/// Serves the socket until told to stop, refused, or unable to go on.
async fn serve(
    options: &Options,
    driver: &str,
    bound: Bound,
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
    let server = Server::builder()
        .add_service(RegistrationServer::new(service))
        .serve_with_incoming_shutdown(
            ReceiverStream::new(incoming).map(Ok::<_, io::Error>),
            ending.clone().cancelled_owned(),
        );
    let mut server = pin!(server);
    // Ends with the socket's file gone: before calls are waited for.
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
    // Kubelet's last call gets its answer; a connection that says nothing is not waited for.
    let _ = tokio::time::timeout(GRACE, server).await;
    ended
}

/// Takes connections, and looks after the socket's file. Ends if somebody else took it.
async fn accept(
    health: &Health,
    mut bound: Bound,
    connections: mpsc::Sender<AuthorityRewrite<tokio::net::UnixStream>>,
) -> Error {
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = bound.accept() => match accepted {
                // None is lost: whoever can't be served now will come again.
                Ok(stream) => {
                    let _ = connections.try_send(AuthorityRewrite::new(stream));
                }
                Err(error) => {
                    // Out of descriptors, most likely. It passes, but not at once.
                    tracing::warn!(%error, "can't take a connection to the registration socket");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            },
            _ = look.tick() => {
                if bound.name().is_there() {
                    continue;
                }
                let path = bound.name().path().to_owned();
                match Bound::new(&path).await {
                    Ok(again) => {
                        tracing::warn!(socket = %path.display(), "the registration socket was gone; it is made again");
                        health.listens(again.name());
                        bound = again;
                    }
                    Err(served @ Error::Served(_)) => return served,
                    Err(error) => tracing::warn!(%error, "the registration socket is gone"),
                }
            }
        }
    }
}

/// What kubelet calls.
struct Service {
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
            // If it is full, one refusal is on its way, and one is enough.
            let _ = self.refused.try_send(status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
pub(crate) mod tests;
