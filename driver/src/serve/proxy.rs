//! Runs `hostloop proxy`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_controllers::grpc_server;
use hostloop_controllers::tasks::Tasks;
use hostloop_events::otlp::Exporter;
use hostloop_events::serve::Process;
use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::http_endpoint::ReportedComponents;
use super::process::{GRACE, fault_injector, follow_faults, listen, show};
use super::signals::Signals;
use super::{descriptors, events, otlp};
use crate::cli::ProxyArgs;
use crate::proxy::Proxy;
use crate::proxy::recording::Recording;

/// Passes calls to a driver until a signal comes.
pub(super) async fn run(args: &ProxyArgs) -> Result<(), Error> {
    check_sockets(&args.csi_address, &args.endpoint)?;
    let mut signals = Signals::install()?;
    let stop = CancellationToken::new();
    let mut roles = Tasks::default();
    let rules = args.faults.fault_rules.as_deref();
    let faults = fault_injector(rules, args.node_id.as_deref())?;
    follow_faults(faults.as_ref(), &stop, &mut roles);
    let process = Process {
        process: "proxy".to_owned(),
        node: args.node_id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let exporter = otlp::prepare(&args.watch, &process)?;
    let shown = ReportedComponents {
        services: None,
        controllers: None,
        dropped: exporter.as_ref().map(Exporter::dropped),
        faults: faults.clone(),
        pool_faults: None,
    };
    let address = args.watch.http_endpoint.as_ref().map(ToString::to_string);
    show(address, shown, &stop, &mut roles).await?;
    otlp::start(exporter, &stop, &mut roles);
    // It outlasts the calls.
    let mut recorder = Recorder::default();
    recorder.start(args.record.as_deref(), &process).await?;
    let endpoint = Some(args.endpoint.as_path());
    let events = events::start(&args.watch.events, endpoint, process, &stop, &mut roles)?;

    let (listener, name) = listen(&args.endpoint)?;
    let proxy = Arc::new(Proxy {
        driver: args.csi_address.clone(),
        faults,
    });
    let connections = grpc_server::connections(listener, descriptors::csi_connections());
    roles.keep("the proxy", proxy.serve(connections, stop.clone()));
    tracing::info!(
        socket = %args.endpoint.display(), driver = %args.csi_address.display(), "passing calls"
    );

    let served = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping");
            Ok(())
        }
        ended = roles.next() => Err(ended.into()),
        ended = recorder.tasks.next() => Err(ended.into()),
    };
    drop((name, events));
    stop.cancel();
    tokio::select! {
        () = finish(&mut roles, &mut recorder) => tracing::info!("stopped"),
        () = tokio::time::sleep(GRACE) => tracing::warn!("stopped before all calls were answered"),
        signal = signals.next() => tracing::warn!(signal, "stopped before all calls were answered"),
    }
    served
}

/// Fails if the driver's socket is the proxy's own.
fn check_sockets(driver: &Path, own: &Path) -> Result<(), Error> {
    if resolved(driver) == resolved(own) {
        return Err(Error::ProxyOfItself(own.to_owned()));
    }
    Ok(())
}

/// The path of a socket by the one name of its directory.
fn resolved(socket: &Path) -> PathBuf {
    let dir = socket.parent().and_then(|dir| dir.canonicalize().ok());
    match (dir, socket.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        _ => socket.to_owned(),
    }
}

/// The task that writes `--record`, with a stop of its own.
#[derive(Default)]
struct Recorder {
    tasks: Tasks,
    stop: CancellationToken,
}

impl Recorder {
    /// Starts to write the file, if it is given.
    async fn start(&mut self, file: Option<&Path>, process: &Process) -> Result<(), Error> {
        let Some(path) = file else {
            return Ok(());
        };
        let recording = Recording::open(path).await;
        let recording = recording.map_err(|source| Error::Record {
            path: path.to_owned(),
            source,
        })?;
        let following = recording.follow(process.clone(), self.stop.clone());
        self.tasks.keep("recording calls", following);
        Ok(())
    }

    /// Writes what is left.
    async fn finish(&mut self) {
        self.stop.cancel();
        self.tasks.finish().await;
    }
}

/// Waits until all roles have ended, and until their last calls are recorded.
async fn finish(roles: &mut Tasks, recorder: &mut Recorder) {
    roles.finish().await;
    recorder.finish().await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hostloop_events::{Call, Fields};

    use super::*;

    #[test]
    fn a_proxy_of_itself_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (csi, other) = (dir.path().join("csi"), dir.path().join("other"));
        std::fs::create_dir(&csi).unwrap();
        std::os::unix::fs::symlink(&csi, &other).unwrap();
        let own = csi.join("csi.sock");
        for (driver, is_refused) in [
            (own.clone(), true),
            (other.join("csi.sock"), true),
            (csi.join("driver.sock"), false),
            (dir.path().join("csi.sock"), false),
            (dir.path().join("missing/csi.sock"), false),
        ] {
            let checked = check_sockets(&driver, &own);
            assert_eq!(checked.is_err(), is_refused, "{}", driver.display());
        }
    }

    #[tokio::test]
    async fn calls_that_end_after_the_stop_are_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls.jsonl");
        let process = Process {
            process: "proxy".to_owned(),
            node: None,
            version: "0".to_owned(),
        };
        let mut recorder = Recorder::default();
        recorder.start(Some(&path), &process).await.unwrap();
        let (stop, mut roles) = (CancellationToken::new(), Tasks::default());
        let stopped = stop.clone();
        roles.start("the proxy", async move {
            stopped.cancelled().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            let call = Call::begin("DeleteVolume", "the-last-call", None, Fields::default());
            call.end("OK", "", Duration::ZERO, Fields::default());
            Ok(())
        });
        stop.cancel();
        finish(&mut roles, &mut recorder).await;
        let text = std::fs::read_to_string(&path).unwrap();
        let ended = text
            .lines()
            .any(|line| line.contains("the-last-call") && line.contains("\"OK\""));
        assert!(ended, "{text}");
    }
}
