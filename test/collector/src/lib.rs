//! An OTLP collector in memory, for tests of what exports spans.
//!
//! It takes spans by gRPC at a port of 127.0.0.1, and keeps them. A test sets its [`Answer`], and
//! can stop it and start it again at the same address.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// How long [`Collector::until`] waits.
const PATIENCE: Duration = Duration::from_secs(300);

/// How the collector answers requests.
#[derive(Clone, Debug, Default)]
pub enum Answer {
    /// It takes the spans.
    #[default]
    Accept,
    /// It takes the spans, but says that it rejected this many.
    Reject(i64),
    Fail(Status),
    /// It takes the spans after this time.
    After(Duration),
}

/// What the collector got.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The accepted spans.
    pub spans: Vec<Span>,
    /// The attributes of the last resource.
    pub resource: Vec<KeyValue>,
    /// The headers of the last request.
    pub headers: MetadataMap,
    /// All requests, also those that failed.
    pub requests: usize,
}

#[derive(Debug, Default)]
struct State {
    answer: Answer,
    received: Received,
}

type Shared = Arc<Mutex<State>>;

/// A collector. It has threads of its own, which end with all connections when it stops.
#[derive(Debug)]
pub struct Collector {
    shared: Shared,
    address: SocketAddr,
    /// None while it is away.
    runtime: Option<Runtime>,
}

impl Collector {
    /// Starts a collector at a free port.
    pub fn start() -> io::Result<Collector> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let mut collector = Collector {
            shared: Shared::default(),
            address,
            runtime: None,
        };
        collector.serve(listener)?;
        Ok(collector)
    }

    /// Stops the collector: connections break, and its port is closed.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On another thread, because the test may be asynchronous.
            let _joined = thread::spawn(move || runtime.shutdown_timeout(PATIENCE)).join();
        }
    }

    /// Starts it again at the same address.
    pub fn resume(&mut self) -> io::Result<()> {
        self.serve(TcpListener::bind(self.address)?)
    }

    fn serve(&mut self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let service = TraceServiceServer::new(Service(self.shared.clone()));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let connections = TcpListenerStream::new(listener);
            let served = Server::builder()
                .add_service(service)
                .serve_with_incoming(connections);
            served.await.map_err(io::Error::other)
        });
        self.runtime = Some(runtime);
        Ok(())
    }

    /// The address for an exporter.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets the answer to further requests.
    pub fn answer(&self, answer: Answer) {
        self.shared.lock().answer = answer;
    }

    /// What it got until now.
    pub fn received(&self) -> Received {
        self.shared.lock().received.clone()
    }

    /// What it got, once that is enough. The result is an error after five minutes.
    pub async fn until(&self, enough: impl Fn(&Received) -> bool) -> Result<Received, Received> {
        let end = Instant::now() + PATIENCE;
        loop {
            let received = self.received();
            if enough(&received) {
                return Ok(received);
            }
            if Instant::now() > end {
                return Err(received);
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Service(Shared);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let answer = {
            let mut state = self.0.lock();
            state.received.requests += 1;
            state.answer.clone()
        };
        let mut partial_success = None;
        match answer {
            Answer::Accept => {}
            Answer::Reject(rejected_spans) => {
                let error_message = "as the test says".to_owned();
                partial_success = Some(ExportTracePartialSuccess {
                    rejected_spans,
                    error_message,
                });
            }
            Answer::Fail(status) => return Err(status),
            Answer::After(time) => sleep(time).await,
        }
        let mut state = self.0.lock();
        let (headers, _, message) = request.into_parts();
        state.received.headers = headers;
        for spans in message.resource_spans {
            state.received.resource = spans.resource.unwrap_or_default().attributes;
            let spans = spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
            state.received.spans.extend(spans);
        }
        Ok(Response::new(ExportTraceServiceResponse {
            partial_success,
        }))
    }
}

/// The text of an attribute; numbers, flags and lists as Rust's `Debug` shows them.
pub fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref().map(shown)
}

fn shown(value: &AnyValue) -> String {
    match &value.value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        Some(Value::ArrayValue(list)) => {
            list.values.iter().map(shown).collect::<Vec<_>>().join(",")
        }
        other => format!("{other:?}"),
    }
}
