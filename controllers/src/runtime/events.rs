//! Events: what users see of what happens to their objects (`kubectl describe`).
//!
//! They are best-effort and off the path of the work: sent by a task of their own from a bounded
//! queue whose overflow is counted, never waited for. The same event again is counted in the one
//! there is. A message must never contain a secret.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::kube::Resource;
use super::metrics::Metrics;

/// Events that wait to be sent, at most.
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
}

/// Where events go. Clones share it.
#[derive(Clone, Debug)]
pub struct Events {
    waiting: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// Sends them to the API server as `component`, until `stop`.
    pub fn start(
        client: Client,
        component: &str,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        let (events, waiting) = Events::collected(metrics.clone());
        tokio::spawn(send::run(
            client,
            component.to_owned(),
            waiting,
            metrics,
            stop,
        ));
        events
    }

    /// Keeps them for who reads them from the channel: for tests.
    pub fn collected(metrics: Arc<Metrics>) -> (Self, mpsc::Receiver<Event>) {
        let (sender, waiting) = mpsc::channel(WAITING);
        (
            Events {
                waiting: sender,
                metrics,
            },
            waiting,
        )
    }

    /// Tells that something went as it should.
    pub fn normal<K: Resource>(&self, about: &K, reason: &str, message: impl Into<String>) {
        self.tell(about.object_ref(&()), Kind::Normal, reason, message.into());
    }

    /// Tells that something did not.
    pub fn warning<K: Resource>(&self, about: &K, reason: &str, message: impl Into<String>) {
        self.tell(about.object_ref(&()), Kind::Warning, reason, message.into());
    }

    /// Tells of an object that is known by reference only.
    pub fn tell(&self, about: ObjectReference, kind: Kind, reason: &str, message: String) {
        let event = Event {
            about,
            kind,
            reason: reason.to_owned(),
            message,
        };
        if self.waiting.try_send(event).is_err() {
            self.metrics.event_lost();
        }
    }
}

mod send;
