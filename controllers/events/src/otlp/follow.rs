//! Follows the ring and sends what it finds.

use std::error::Error;
use std::iter::successors;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest,
};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::Exporter;
use super::span::span;
use crate::Ring;
use crate::event::shorten;

/// The most events of one request.
const BATCH: usize = 128;

/// The exporter's waits and deadlines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The pause after a new event, so that one request has several.
    pub(super) pause: Duration,
    /// How long a request may take, with the connection.
    pub(super) request: Duration,
    /// The pause after the first failure; it doubles after each further one.
    pub(super) first_retry: Duration,
    /// The longest pause after a failure.
    pub(super) last_retry: Duration,
    /// The shortest time between two warnings.
    pub(super) warning: Duration,
    /// How long the last requests may take when the process stops.
    pub(super) end: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            pause: Duration::from_millis(200),
            request: Duration::from_secs(10),
            first_retry: Duration::from_secs(1),
            last_retry: Duration::from_secs(30),
            warning: Duration::from_secs(60),
            end: Duration::from_secs(2),
        }
    }
}

/// Sends the events of a ring, in order.
pub(super) struct Follower<'r> {
    exporter: Exporter,
    ring: &'r Ring,
    pace: Pace,
    client: TraceServiceClient<Channel>,
    /// The number of the first event that was not sent.
    next: u64,
    /// The pause after the next failure.
    retry: Duration,
    trouble: ExportTrouble,
}

/// What the log knows of failures.
#[derive(Debug, Default)]
struct ExportTrouble {
    warned: Option<Instant>,
    /// The number of dropped events at the warning, until spans are sent again.
    since: Option<u64>,
}

impl<'r> Follower<'r> {
    pub(super) fn new(exporter: Exporter, ring: &'r Ring, pace: Pace) -> Follower<'r> {
        let (client, retry) = (exporter.client(), pace.first_retry);
        Follower {
            exporter,
            ring,
            pace,
            client,
            next: 0,
            retry,
            trouble: ExportTrouble::default(),
        }
    }

    /// Sends events until `stop` resolves, and then those that are left.
    pub(super) async fn run_until(mut self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = self.follow() => {}
            () = stop => {}
        }
        let _late = timeout(self.pace.end, self.finish()).await;
    }

    /// Sends events as they come.
    async fn follow(&mut self) {
        let ring = self.ring;
        loop {
            let changed = ring.changed();
            tokio::pin!(changed);
            // From here on, no event is missed.
            changed.as_mut().enable();
            if self.send_batch().await {
                continue;
            }
            changed.await;
            sleep(self.pace.pause).await;
        }
    }

    /// Sends the events that are left, unless the collector is away.
    async fn finish(&mut self) {
        while self.trouble.since.is_none() && self.send_batch().await {}
    }

    /// Sends the next events; false if there are none.
    async fn send_batch(&mut self) -> bool {
        let batch = self.ring.since(self.next, BATCH);
        let missed = batch.first.saturating_sub(self.next);
        self.next = batch.first;
        if missed > 0 {
            self.drop_events(missed, "events come faster than the collector takes them");
        }
        if batch.events.is_empty() {
            return false;
        }
        let events = (batch.first..).zip(&batch.events);
        let spans = events.filter_map(|(seq, event)| span(self.ring.boot(), seq, event));
        let spans: Vec<Span> = spans.collect();
        if spans.is_empty() || self.deliver(spans).await {
            self.next = batch.next();
        }
        true
    }

    /// Sends spans; false if the same ones must come again. Pauses after a failure.
    async fn deliver(&mut self, spans: Vec<Span>) -> bool {
        let count = spans.len() as u64;
        let status = match self.export(spans).await {
            Ok(partial) if partial.rejected_spans > 0 => {
                let rejected = u64::try_from(partial.rejected_spans).unwrap_or(count);
                let reason = format!("{rejected} spans are rejected: {}", partial.error_message);
                self.drop_events(rejected, &reason);
                self.retry = self.pace.first_retry;
                return true;
            }
            Ok(_) => {
                self.succeeded();
                return true;
            }
            Err(status) => status,
        };
        let passes = may_pass(&status);
        if passes {
            self.warn(&reason(&status));
        } else {
            self.drop_events(count, &reason(&status));
        }
        self.pause().await;
        !passes
    }

    async fn export(&mut self, spans: Vec<Span>) -> Result<ExportTracePartialSuccess, Status> {
        let scope = Some(self.exporter.scope.clone());
        let spans = ResourceSpans {
            resource: Some(self.exporter.resource.clone()),
            scope_spans: vec![ScopeSpans {
                scope,
                spans,
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        };
        let mut request = Request::new(ExportTraceServiceRequest {
            resource_spans: vec![spans],
        });
        *request.metadata_mut() = self.exporter.headers.clone();
        let answer = timeout(self.pace.request, self.client.export(request)).await;
        let answer = answer.map_err(|_| Status::deadline_exceeded("no answer in time"))??;
        Ok(answer.into_inner().partial_success.unwrap_or_default())
    }

    /// Waits after a failure. The next request opens a new connection, as the collector may have
    /// moved.
    async fn pause(&mut self) {
        sleep(self.retry).await;
        self.retry = (self.retry * 2).min(self.pace.last_retry);
        self.client = self.exporter.client();
    }

    fn succeeded(&mut self) {
        self.retry = self.pace.first_retry;
        if let Some(dropped) = self.trouble.since.take() {
            let dropped = self.exporter.dropped.count() - dropped;
            tracing::info!(collector = %self.exporter.address, dropped, "spans are exported again");
        }
    }

    fn drop_events(&mut self, events: u64, reason: &str) {
        self.warn(reason);
        self.exporter.dropped.add(events);
    }

    /// Logs the first failure of several.
    fn warn(&mut self, reason: &str) {
        let is_recent = self
            .trouble
            .warned
            .is_some_and(|at| at.elapsed() < self.pace.warning);
        if self.trouble.since.is_some() || is_recent {
            return;
        }
        let reason = shorten(reason);
        tracing::warn!(
            collector = %self.exporter.address, %reason,
            "spans are not exported; if this lasts, the oldest events are dropped"
        );
        self.trouble.warned = Some(Instant::now());
        self.trouble.since = Some(self.exporter.dropped.count());
    }
}

/// True if the same request may succeed later, as the OTLP specification says.
fn may_pass(status: &Status) -> bool {
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => true,
        // The details say when to try again. Without them, the request is too large.
        Code::ResourceExhausted => !status.details().is_empty(),
        _ => false,
    }
}

/// The code, the message and the last cause, such as the error of the connection.
fn reason(status: &Status) -> String {
    let cause = successors(status.source(), |&error| error.source()).last();
    let parts = [
        Some(status.message().to_owned()),
        cause.map(ToString::to_string),
    ];
    let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
    parts.fold(format!("{:?}", status.code()), |text, part| {
        format!("{text}: {part}")
    })
}

#[cfg(test)]
mod tests;
