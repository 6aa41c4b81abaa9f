//! `/metrics` and `/healthz`, for `--http-endpoint`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hostloop_controllers::http_server::{self, Limits, PUBLIC_CONNECTIONS};
use hostloop_controllers::manager::Telemetry;
use hostloop_events::otlp::Dropped;
use prometheus_client::encoding::text::encode_eof;
use tokio::net::TcpListener;

use super::metrics::{self, Calls};
use super::pool_metrics;
use crate::blocking::Blocking;
use crate::storage::Pools;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long an answer may take, until the client has it.
const ANSWER: Duration = Duration::from_secs(60);

/// The part of the CSI services that the endpoint reports.
#[derive(Clone)]
pub struct Services {
    pub(crate) calls: Arc<Calls>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) blocking: Blocking,
}

/// The components of this process that the endpoint reports.
#[derive(Clone)]
pub struct Shown {
    /// The CSI services.
    pub services: Option<Services>,
    /// The Kubernetes controllers.
    pub controllers: Option<Telemetry>,
    /// The export of spans.
    pub dropped: Option<Dropped>,
}

/// Serves HTTP until `stop` resolves.
pub async fn serve(listener: TcpListener, shown: Shown, stop: impl Future<Output = ()>) {
    let limits = Limits {
        connections: PUBLIC_CONNECTIONS,
        answer: ANSWER,
    };
    http_server::serve(listener, router(shown), limits, stop).await;
}

fn router(shown: Shown) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(healthz))
        .route("/healthz/leader-election", get(leaders))
        .with_state(shown)
}

async fn show_metrics(State(shown): State<Shown>) -> Response {
    match shown.metrics().await {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

impl Shown {
    async fn metrics(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        if let Some(services) = &self.services {
            let pools = pool_metrics::gauges(services.pools.clone(), &services.blocking).await;
            metrics::render(&mut text, &services.calls, &pools)?;
        }
        if let Some(controllers) = &self.controllers {
            controllers.metrics(&mut text)?;
        }
        if let Some(dropped) = &self.dropped {
            metrics::render_dropped(&mut text, dropped.count())?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }
}

/// Answers OK while the process responds, like Probe.
async fn healthz() -> Response {
    answer(Ok::<(), String>(()))
}

async fn leaders(State(shown): State<Shown>) -> Response {
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
