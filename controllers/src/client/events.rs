//! Kubernetes events: they show users what happens to their objects (`kubectl describe`).
//!
//! Events are best-effort and never delay the work: a separate task sends them from a bounded
//! queue. An event that does not fit in the queue is counted as lost. Warnings, and events about
//! work that has to wait, are sent first and without a pause. Other normal events wait until none
//! has been emitted for five seconds, at most two minutes. They are then sent at a fixed rate, so a
//! storm of claims is not slowed by its own events. Namespaces take turns, and the one with the most
//! events loses what does not fit. A repeated event only increases the count of the first. A message
//! must never contain a secret.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::message;
use crate::client::kube::Resource;
use crate::metrics::Metrics;
use pacing::Backlog;
#[cfg(test)]
pub(crate) use queue::EventReceiver;
use queue::EventSender;
use sender::Sender;

/// The limit of each queue.
const WAITING: usize = 1000;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Something succeeded.
    Normal,
    /// Something failed.
    Warning,
}

/// An event to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterEvent {
    /// The object that the event is about.
    pub about: ObjectReference,
    pub kind: EventKind,
    /// One word for programs, such as `ProvisioningFailed`.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// When the event was emitted.
    pub emitted: Instant,
    /// Other processes may emit this event, too. Its name is a hash of its content, so only the
    /// first one is created.
    pub shared: bool,
}

/// Emits events. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Events {
    normal: EventSender,
    urgent: EventSender,
    /// When the newest normal event was emitted.
    last: Arc<watch::Sender<Instant>>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// Creates an emitter and a task. The task sends events to the API server as `component` on the
    /// node `host` (empty if it is unknown) until `stop`, and then those that still wait.
    pub fn start(
        client: Client,
        component: &str,
        host: &str,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (events, backlog) = Events::queued(metrics.clone());
        let sender = Sender::new(client, component, host, metrics);
        (events, sender.run(backlog, stop))
    }

    fn queued(metrics: Arc<Metrics>) -> (Self, Backlog) {
        let (normal, waiting) = queue::queue(WAITING);
        let (urgent, waiting_urgent) = queue::queue(WAITING);
        let (last, seen) = watch::channel(Instant::now());
        let events = Events {
            normal,
            urgent,
            last: Arc::new(last),
            metrics,
        };
        (events, Backlog::new(waiting_urgent, waiting, seen))
    }

    /// The second value receives every event.
    #[cfg(test)]
    pub(crate) fn collected(metrics: Arc<Metrics>) -> (Self, EventReceiver) {
        let (sender, waiting) = queue::queue(WAITING);
        let events = Events {
            normal: sender.clone(),
            urgent: sender,
            last: Arc::new(watch::Sender::new(Instant::now())),
            metrics,
        };
        (events, waiting)
    }

    /// Emits a normal event.
    pub fn normal<K: Resource>(&self, about: &K, reason: &str, message: impl Into<String>) {
        let about = about.object_ref(&());
        self.emit(about, EventKind::Normal, reason, message.into());
    }

    /// Emits a normal event about work that has to wait and is retried. Its repeats do not hold
    /// back the other normal events.
    pub fn waits<K: Resource>(&self, about: &K, reason: &str, message: String) {
        self.send(
            &self.urgent,
            new(about.object_ref(&()), EventKind::Normal, reason, message),
        );
    }

    /// Emits a warning.
    pub fn warning<K: Resource>(&self, about: &K, reason: &str, message: impl Into<String>) {
        let about = about.object_ref(&());
        self.emit(about, EventKind::Warning, reason, message.into());
    }

    /// Emits an event that every node or a later process may emit, too: the API server keeps only
    /// the first.
    pub fn once<K: Resource>(&self, about: &K, kind: EventKind, reason: &str, message: String) {
        let event = new(about.object_ref(&()), kind, reason, message);
        self.put(ClusterEvent {
            shared: true,
            ..event
        });
    }

    /// Emits an event about an object that is known by reference only.
    pub fn emit(&self, about: ObjectReference, kind: EventKind, reason: &str, message: String) {
        self.put(new(about, kind, reason, message));
    }

    fn put(&self, event: ClusterEvent) {
        let queue = match event.kind {
            EventKind::Normal => {
                self.last.send_replace(event.emitted);
                &self.normal
            }
            EventKind::Warning => &self.urgent,
        };
        self.send(queue, event);
    }

    fn send(&self, queue: &EventSender, event: ClusterEvent) {
        if !queue.put(event) {
            self.metrics.event_lost();
        }
    }
}

fn new(about: ObjectReference, kind: EventKind, reason: &str, message: String) -> ClusterEvent {
    let reason = reason.to_owned();
    // Events wait in the queue, and the sender remembers them.
    let message = message::cut(&message, message::MAX_EVENT);
    ClusterEvent {
        about,
        kind,
        reason,
        message,
        emitted: Instant::now(),
        shared: false,
    }
}

mod pacing;
mod queue;
pub mod reasons;
mod sender;
