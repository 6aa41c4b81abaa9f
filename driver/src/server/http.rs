//! `/metrics` and `/healthz`, for `--http-endpoint`.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::gauges::Gauges;
use super::metrics::{self, Calls};
use super::probe::Prober;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the endpoint shows.
#[derive(Clone)]
pub struct Shown {
    pub(crate) calls: Arc<Calls>,
    pub(crate) gauges: Gauges,
    pub(crate) prober: Prober,
}

/// Serves until `stop` comes.
pub async fn serve(
    listener: TcpListener,
    shown: Shown,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router(shown))
        .with_graceful_shutdown(stop)
        .await
}

fn router(shown: Shown) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(healthz))
        .with_state(shown)
}

async fn show_metrics(State(shown): State<Shown>) -> Response {
    match metrics::render(&shown.calls, &shown.gauges.read().await) {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The same as Probe, in the way of the livenessprobe sidecar: 200 or 500.
async fn healthz(State(shown): State<Shown>) -> Response {
    match shown.prober.ready().await {
        Ok(()) => (StatusCode::OK, "ok").into_response(),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
    }
}
