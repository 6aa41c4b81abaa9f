//! Sends the events of this process to a collector, as spans of OpenTelemetry by OTLP over gRPC.
//!
//! The exporter reads the ring like any other reader, so it never blocks the process. The ring is
//! its only queue: while the collector is slow or away, new events replace those that were not
//! sent. [`Dropped`] counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

use crate::RING;
use crate::serve::Process;

mod attribute;
mod follow;
mod ids;
mod settings;
mod span;

pub use settings::{Address, Environment};

use follow::{Follower, Pace};

/// The name of the service and of the instrumentation.
const NAME: &str = "hostloop";

/// The reason why spans can't be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--otlp-endpoint {address} is not usable")]
    Endpoint {
        address: Address,
        source: tonic::transport::Error,
    },
    #[error("{variable}: entry {entry} is not NAME=VALUE")]
    Entry {
        variable: &'static str,
        /// The number of the entry, from 1. Its text may be a secret.
        entry: usize,
    },
    #[error(
        "{variable}: entry {entry} is not a header for gRPC: letters, digits, '-', '_' and '.'"
    )]
    Header {
        variable: &'static str,
        entry: usize,
    },
}

/// The number of events that no collector got. Clones are the same number.
#[derive(Clone, Debug, Default)]
pub struct Dropped(Arc<AtomicU64>);

impl Dropped {
    /// The number since the start of the process.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, events: u64) {
        self.0.fetch_add(events, Ordering::Relaxed);
    }
}

/// Sends events to one collector.
#[derive(Debug)]
pub struct Exporter {
    address: Address,
    endpoint: Endpoint,
    headers: MetadataMap,
    resource: Resource,
    scope: InstrumentationScope,
    dropped: Dropped,
}

impl Exporter {
    /// Prepares the export, without a connection.
    pub fn new(
        address: &Address,
        environment: &Environment,
        process: &Process,
    ) -> Result<Exporter, Error> {
        let endpoint = Endpoint::from_shared(address.to_string())
            .and_then(|endpoint| endpoint.user_agent(format!("{NAME}/{}", process.version)))
            .map_err(|source| Error::Endpoint {
                address: address.clone(),
                source,
            })?;
        Ok(Exporter {
            address: address.clone(),
            endpoint,
            headers: environment.headers()?,
            resource: settings::resource(RING.boot(), process, environment.attributes()?),
            scope: InstrumentationScope {
                name: NAME.to_owned(),
                version: process.version.clone(),
                ..InstrumentationScope::default()
            },
            dropped: Dropped::default(),
        })
    }

    /// The number of events that the collector does not get.
    pub fn dropped(&self) -> Dropped {
        self.dropped.clone()
    }

    /// Sends the events of this process until `stop` resolves, and then those that are left.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        Follower::new(self, &RING, Pace::default())
            .run_until(stop)
            .await;
    }

    /// A client with a new connection, which opens at the first request.
    fn client(&self) -> TraceServiceClient<Channel> {
        TraceServiceClient::new(self.endpoint.connect_lazy())
    }
}
