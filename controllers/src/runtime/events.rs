//! Events: what users see of what happens to their objects (`kubectl describe`).
//!
//! They are best-effort and off the path of the work: sent by tasks of their own from bounded
//! queues whose overflow is counted, never waited for. Warnings go at once. What went as it should
//! can wait: it is sent when there has been no such news for five seconds, and a second more for each
//! that waits, or after two minutes, and then with pauses, so that in a storm the work is not behind
//! the news of it. The same event again is counted in the one there is. A message must never contain
//! a secret.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::kube::Resource;
use super::metrics::Metrics;
use send::Pace;

/// Events of each kind that wait to be sent, at most.
const WAITING: usize = 1000;

/// Whether something went as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It did.
    Normal,
    /// It did not.
    Warning,
}

/// An event to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What it is about.
    pub about: ObjectReference,
    /// Good or bad.
    pub kind: Kind,
    /// One word for programs, as `ProvisioningFailed`.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// When it was told.
    pub told: Instant,
    /// Every node may emit this event. Its name is a hash of its content, so only the first one is
    /// created.
    pub shared: bool,
}

/// Where events go. Clones share it.
#[derive(Clone, Debug)]
pub struct Events {
    normal: mpsc::Sender<Event>,
    warnings: mpsc::Sender<Event>,
    /// When something that went as it should was told last.
    last: Arc<watch::Sender<Instant>>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// With what sends them to the API server as `component` until `stop`, and then those that wait.
    pub fn start(
        client: Client,
        component: &str,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let last = Arc::new(watch::Sender::new(Instant::now()));
        let lane = |pace| {
            let (events, waiting) = mpsc::channel(WAITING);
            let sender = send::Sender::new(client.clone(), component, metrics.clone());
            (events, sender.run(waiting, pace, stop.clone()))
        };
        let (normal, news) = lane(Pace::Yielding(last.subscribe()));
        let (warnings, troubles) = lane(Pace::AtOnce);
        let sending = async {
            tokio::join!(news, troubles);
        };
        let events = Events {
            normal,
            warnings,
            last,
            metrics: metrics.clone(),
        };
        (events, sending)
    }

    /// Keeps them for who reads them from the channel: for tests.
    pub fn collected(metrics: Arc<Metrics>) -> (Self, mpsc::Receiver<Event>) {
        let (sender, waiting) = mpsc::channel(WAITING);
        let events = Events {
            normal: sender.clone(),
            warnings: sender,
            last: Arc::new(watch::Sender::new(Instant::now())),
            metrics,
        };
        (events, waiting)
    }

    /// Tells that something went as it should.
    pub fn normal<K: Resource>(&self, about: &K, reason: &str, message: impl Into<String>) {
        self.tell(about.object_ref(&()), Kind::Normal, reason, message.into());
    }

    /// Tells that something did not.
    pub fn warning<K: Resource>(&self, about: &K, reason: &str, message: impl Into<String>) {
        self.tell(about.object_ref(&()), Kind::Warning, reason, message.into());
    }

    /// Emits a warning that every node would find: the API server keeps only one of these events.
    pub fn shared_warning<K: Resource>(&self, about: &K, reason: &str, message: String) {
        self.put(Event {
            about: about.object_ref(&()),
            kind: Kind::Warning,
            reason: reason.to_owned(),
            message,
            told: Instant::now(),
            shared: true,
        });
    }

    /// Tells of an object that is known by reference only.
    pub fn tell(&self, about: ObjectReference, kind: Kind, reason: &str, message: String) {
        self.put(Event {
            about,
            kind,
            reason: reason.to_owned(),
            message,
            told: Instant::now(),
            shared: false,
        });
    }

    fn put(&self, event: Event) {
        let waiting = match event.kind {
            Kind::Normal => {
                self.last.send_replace(event.told);
                &self.normal
            }
            Kind::Warning => &self.warnings,
        };
        if waiting.try_send(event).is_err() {
            self.metrics.event_lost();
        }
    }
}

mod send;
