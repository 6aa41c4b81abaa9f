//! Serves `/metrics`, `/healthz` and `/healthz/leader-election`, for `--http-endpoint`.
//!
//! This `/healthz` answers OK while the process responds, and checks nothing else. Kubelet asks
//! another one, at `--health-port` ([`hostloop_controllers::liveness`]): it calls Probe and checks
//! the controllers, and its failure restarts the container.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hostloop_controllers::http_server::{self, Limits, PUBLIC_CONNECTIONS};
use hostloop_controllers::manager::Telemetry;
use hostloop_events::otlp::Dropped;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode_eof;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::grpc::{ReportedServices, metrics};
use crate::pool_faults::PoolFaults;
use crate::rpc_faults::FaultInjector;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long an answer may take, until the client has it.
const ANSWER: Duration = Duration::from_secs(60);

/// The components of this process that the endpoint reports.
#[derive(Clone)]
pub(super) struct ReportedComponents {
    /// The CSI services.
    pub(super) services: Option<ReportedServices>,
    /// The Kubernetes controllers.
    pub(super) controllers: Option<Telemetry>,
    /// The export of spans.
    pub(super) dropped: Option<Dropped>,
    /// The faults by rules.
    pub(super) faults: Option<Arc<FaultInjector>>,
    /// The faults of pools.
    pub(super) pool_faults: Option<Arc<PoolFaults>>,
}

/// Serves HTTP until `stop` resolves.
pub(super) async fn serve(
    listener: TcpListener,
    shown: ReportedComponents,
    stop: impl Future<Output = ()>,
) {
    let limits = Limits {
        connections: PUBLIC_CONNECTIONS,
        answer: ANSWER,
    };
    http_server::serve(listener, router(shown), limits, stop).await;
}

fn router(shown: ReportedComponents) -> Router {
    let scrapes = Scrapes::of(shown.clone());
    Router::new()
        .route("/metrics", get(show_metrics).with_state(scrapes))
        .route("/healthz", get(healthz))
        .route("/healthz/leader-election", get(leaders))
        .with_state(shown)
}

async fn show_metrics(State(scrapes): State<Scrapes>) -> Response {
    match scrapes.text().await {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The metrics as a text.
type Text = Result<Bytes, fmt::Error>;

/// A text that is being made.
type PendingText = watch::Sender<Option<Text>>;

/// The scrapes of the metrics. Those that come while a text is made get that one, so any number of
/// them takes the memory and the work of one.
#[derive(Clone)]
struct Scrapes {
    shown: ReportedComponents,
    /// Gone once the text is made.
    making: Arc<Mutex<Weak<PendingText>>>,
}

impl Scrapes {
    fn of(shown: ReportedComponents) -> Scrapes {
        let making = Arc::default();
        Scrapes { shown, making }
    }

    async fn text(&self) -> Text {
        match self.join().wait_for(Option::is_some).await {
            Ok(text) => text.clone().unwrap_or(Err(fmt::Error)),
            // The log has the panic that ended it.
            Err(_) => Err(fmt::Error),
        }
    }

    /// Begins a text, or joins the one that is being made.
    fn join(&self) -> watch::Receiver<Option<Text>> {
        let mut latest = self.making.lock();
        if let Some(making) = latest.upgrade() {
            return making.subscribe();
        }
        let (making, text) = watch::channel(None);
        let making = Arc::new(making);
        *latest = Arc::downgrade(&making);
        let shown = self.shown.clone();
        // It goes on if its scrape hangs up: the next one must not begin a second one beside it.
        tokio::spawn(async move {
            let made = shown.metrics().await.map(Bytes::from);
            making.send_replace(Some(made));
        });
        text
    }
}

impl ReportedComponents {
    async fn metrics(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        if let Some(services) = &self.services {
            services.metrics(&mut text).await?;
        }
        if let Some(controllers) = &self.controllers {
            controllers.metrics(&mut text)?;
        }
        if let Some(dropped) = &self.dropped {
            metrics::render_dropped(&mut text, dropped.count())?;
        }
        if let Some(faults) = &self.faults {
            metrics::render_faults(&mut text, &faults.counts())?;
        }
        if let Some(faults) = &self.pool_faults {
            metrics::render_pool_faults(&mut text, &faults.counts())?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }
}

/// Answers OK while the process responds, like Probe.
async fn healthz() -> Response {
    answer(Ok::<(), String>(()))
}

async fn leaders(State(shown): State<ReportedComponents>) -> Response {
    answer(
        shown
            .controllers
            .map_or(Ok(()), |controllers| controllers.leaders()),
    )
}

fn answer(well: Result<(), impl Into<String>>) -> Response {
    match well {
        Ok(()) => (StatusCode::OK, "ok").into_response(),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, why.into()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;
    use crate::blocking::Blocking;
    use crate::grpc::metrics::Calls;
    use crate::testkit::Site;

    #[tokio::test]
    async fn scrapes_at_the_same_time_share_one_text() {
        let site = Site::fake(&["a"]);
        let services = ReportedServices {
            calls: Arc::new(Calls::new("test")),
            pools: site.pools().clone(),
            blocking: Blocking::default(),
        };
        let scrapes = Scrapes::of(ReportedComponents {
            services: Some(services),
            controllers: None,
            dropped: None,
            faults: None,
            pool_faults: None,
        });
        let texts = join_all((0..32).map(|_| scrapes.text())).await;
        let places: Vec<_> = texts
            .iter()
            .map(|text| text.as_ref().unwrap().as_ptr())
            .collect();
        assert_eq!(places, vec![places[0]; 32]);
        // A later one has the values of its own time.
        let later = scrapes.text().await.unwrap();
        assert_ne!(later.as_ptr(), places[0]);
    }
}
