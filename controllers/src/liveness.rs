//! Serves the liveness endpoint for kubelet: `/healthz`, 200 or 500.
//!
//! Each request joins the running Probe call or starts one. It also evaluates the [`Checks`] that
//! other parts of the process have added. Kubelet reacts to a failure by restarting the container,
//! so only add checks that a restart can fix.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use hostloop_proto::csi;
use parking_lot::{Mutex, RwLock};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::csi::Csi;
use crate::http_server::{self, Limits, PUBLIC_CONNECTIONS};

/// How long kubelet may take to receive an answer.
const RECEIPT: Duration = Duration::from_secs(10);

/// Why the endpoint is not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listening on {address} for liveness probes: {source}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
}

/// Checks one part of the process. The error is the reason.
type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Checks besides the driver's Probe. Clones share them, and checks can be added at any time.
#[derive(Clone, Default)]
pub struct Checks(Arc<RwLock<Vec<(String, Check)>>>);

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = self.0.read();
        f.debug_set()
            .entries(checks.iter().map(|(name, _)| name))
            .finish()
    }
}

impl Checks {
    /// Adds a check. It runs for each request, so it must only read state that is already known.
    pub fn add(
        &self,
        name: impl Into<String>,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        let mut checks = self.0.write();
        checks.push((name.into(), Box::new(check)));
    }

    /// The failed checks, one line each.
    pub fn failures(&self) -> Vec<String> {
        let checks = self.0.read();
        let failures = checks
            .iter()
            .filter_map(|(name, check)| check().err().map(|why| format!("{name}: {why}")));
        failures.collect()
    }
}

/// Options of the endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The address to listen on (`--health-port`, on all addresses: kubelet uses the pod's).
    pub address: SocketAddr,
    /// The timeout of a Probe call (`--probe-timeout`).
    pub probe_timeout: Duration,
}

/// Serves the endpoint until `stop`.
pub async fn run(
    options: Options,
    csi: Option<Csi>,
    checks: Checks,
    stop: CancellationToken,
) -> Result<(), Error> {
    let Options {
        address,
        probe_timeout,
    } = options;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| Error::Listen { address, source })?;
    serve(listener, Liveness::new(csi, probe_timeout, checks), stop).await;
    Ok(())
}

/// Serves the endpoint on a listener until `stop`.
pub async fn serve(listener: TcpListener, liveness: Liveness, stop: CancellationToken) {
    let answer = liveness.timeout + RECEIPT;
    let limits = Limits {
        connections: PUBLIC_CONNECTIONS,
        answer,
    };
    let router = Router::new()
        .route("/healthz", get(healthz))
        .with_state(liveness);
    http_server::serve(listener, router, limits, stop.cancelled()).await;
}

async fn healthz(State(liveness): State<Liveness>) -> (StatusCode, String) {
    match liveness.look().await {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(why) => {
            tracing::warn!(why, "liveness probe failed");
            (StatusCode::INTERNAL_SERVER_ERROR, why)
        }
    }
}

/// The state behind the endpoint. Clones share the running Probe call.
#[derive(Clone)]
pub struct Liveness {
    csi: Option<Csi>,
    timeout: Duration,
    checks: Checks,
    running: Arc<Mutex<Option<WeakShared<Probing>>>>,
}

/// A Probe call to the driver: ready, or the reason why not.
type Probing = BoxFuture<'static, Result<(), String>>;

impl Liveness {
    /// `csi` is the driver to probe, if this process has one.
    pub fn new(csi: Option<Csi>, timeout: Duration, checks: Checks) -> Self {
        Liveness {
            csi,
            timeout,
            checks,
            running: Arc::default(),
        }
    }

    /// Runs all checks and the Probe. The error has one line for each failure.
    pub async fn look(&self) -> Result<(), String> {
        let mut failures = self.checks.failures();
        failures.extend(self.probe().await.err());
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures.join("\n"))
        }
    }

    /// Joins the running Probe call, or starts one. At most one call runs, so frequent requests or
    /// a hanging driver add no load and do not block kubelet. The call is cancelled when its last
    /// waiter is dropped.
    fn probe(&self) -> Shared<Probing> {
        let mut running = self.running.lock();
        let joined = running.as_ref().and_then(WeakShared::upgrade);
        if let Some(joined) = joined.filter(|probe| probe.peek().is_none()) {
            return joined;
        }
        let probe = probe(self.csi.clone(), self.timeout).boxed().shared();
        *running = probe.downgrade();
        probe
    }
}

async fn probe(csi: Option<Csi>, timeout: Duration) -> Result<(), String> {
    let Some(csi) = csi else {
        return Ok(());
    };
    match csi.probe(csi::ProbeRequest {}, timeout).await {
        Ok(answer) if answer.ready == Some(false) => Err("the driver is not ready".to_owned()),
        // Unset means ready.
        Ok(_) => Ok(()),
        Err(failure) => Err(failure.to_string()),
    }
}

#[cfg(test)]
mod tests;
