//! Sending events.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event as Object, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::pacing::Backlog;
use super::{ClusterEvent, EventKind};
use crate::api::scope::hash;
use crate::client::kube::is_outage;
use crate::metrics::Metrics;

/// How long the remaining events may take after the stop.
const HURRY: Duration = Duration::from_secs(3);
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// The pauses before an event without an answer is sent again.
const PAUSES: [Duration; 3] = [
    Duration::from_secs(2),
    Duration::from_secs(15),
    Duration::from_secs(60),
];
/// The maximum number of such events.
const ASIDE: usize = 256;
/// How long a repeated event only increases the count of the first.
const SAME: Duration = Duration::from_secs(600);
/// The maximum number of events remembered for counting repeats.
const REMEMBERED: usize = 4096;

/// The fields that identify repeats of an event.
type Sameness = (Option<String>, String, EventKind, String, String);

struct Sent {
    name: String,
    count: i32,
    at: Instant,
}

/// An event, and how often it was sent without an answer.
struct Tried {
    event: ClusterEvent,
    times: usize,
}

/// Events that got no answer. They are sent again, because an event may be all that explains a wait.
/// One of them may then be there twice. Others do not wait for them.
#[derive(Default)]
struct Unanswered {
    /// With the time when it is sent again; the next one is first.
    events: BTreeMap<(Instant, u64), Tried>,
    /// The number of events that were put aside.
    count: u64,
}

impl Unanswered {
    /// Waits for the next event, new or not; `None` after the last one.
    async fn next(&mut self, backlog: &mut Backlog) -> Option<Tried> {
        let due = self.events.first_key_value().map(|((due, _), _)| *due);
        let new = async { backlog.next().await.map(|event| Tried { event, times: 0 }) };
        let Some(due) = due else {
            return new.await;
        };
        tokio::select! {
            biased;
            () = sleep_until(due) => self.events.pop_first().map(|(_, tried)| tried),
            Some(new) = new => Some(new),
        }
    }

    /// Keeps an event to send it again; false if it was sent often enough, or too many wait.
    fn put_aside(&mut self, Tried { event, times }: Tried) -> bool {
        let Some(pause) = PAUSES.get(times).filter(|_| self.events.len() < ASIDE) else {
            return false;
        };
        self.count += 1;
        let key = (Instant::now() + *pause, self.count);
        self.events.insert(
            key,
            Tried {
                event,
                times: times + 1,
            },
        );
        true
    }

    /// Returns the next event, due or not.
    fn take(&mut self) -> Option<ClusterEvent> {
        self.events.pop_first().map(|(_, tried)| tried.event)
    }
}

/// Sends events, one at a time.
pub(super) struct Sender {
    client: Client,
    component: String,
    host: String,
    metrics: Arc<Metrics>,
    sent: HashMap<Sameness, Sent>,
}

impl Sender {
    pub(super) fn new(client: Client, component: &str, host: &str, metrics: Arc<Metrics>) -> Self {
        Sender {
            client,
            component: component.to_owned(),
            host: host.to_owned(),
            metrics,
            sent: HashMap::new(),
        }
    }

    /// Sends events until the queue ends or `stop`, then sends those that still wait.
    pub(super) async fn run(mut self, mut backlog: Backlog, stop: CancellationToken) {
        let mut unanswered = Unanswered::default();
        while let Some(Some(tried)) = stop
            .run_until_cancelled(unanswered.next(&mut backlog))
            .await
        {
            if !self.try_send(&tried.event).await && !unanswered.put_aside(tried) {
                self.metrics.event_lost();
            }
        }
        backlog.close();
        let all = async {
            while let Some(event) = backlog.take().or_else(|| unanswered.take()) {
                if !self.try_send(&event).await {
                    self.metrics.event_lost();
                }
            }
        };
        let in_time = tokio::time::timeout(HURRY, all).await.is_ok();
        if !in_time {
            // The event that was being sent may have arrived or not.
            let events = backlog.len() + unanswered.events.len() + 1;
            tracing::info!(events, "events were not sent before the stop");
        }
    }

    /// Sends an event. False if the API server gave no answer, or can't serve requests now.
    async fn try_send(&mut self, event: &ClusterEvent) -> bool {
        match tokio::time::timeout(DEADLINE, self.send(event)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) if may_be_accepted_later(&error) => false,
            Ok(Err(error)) => {
                self.metrics.event_lost();
                tracing::debug!(reason = %event.reason, %error, "an event was not accepted");
                true
            }
            Err(_) => false,
        }
    }

    async fn send(&mut self, event: &ClusterEvent) -> Result<(), kube::Error> {
        let namespace = namespace(&event.about);
        let api: Api<Object> = Api::namespaced(self.client.clone(), namespace);
        let sameness = sameness(event);
        if let Some(sent) = self.sent.get_mut(&sameness)
            && sent.at.elapsed() < SAME
        {
            let count = sent.count.saturating_add(1);
            let patch = json!({"count": count, "lastTimestamp": Time(emitted_at(event))});
            let params = PatchParams::default();
            match api.patch(&sent.name, &params, &Patch::Merge(patch)).await {
                Ok(_) => {
                    sent.count = count;
                    return Ok(());
                }
                // The API server has deleted it: create another one.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let object = self.object(event, namespace);
        match api.create(&PostParams::default(), &object).await {
            Ok(made) => {
                self.remember(sameness, made.metadata.name.unwrap_or_default());
                Ok(())
            }
            // Another node created this event first.
            Err(kube::Error::Api(status)) if event.shared && status.code == 409 => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn remember(&mut self, sameness: Sameness, name: String) {
        if self.sent.len() >= REMEMBERED {
            self.sent.retain(|_, sent| sent.at.elapsed() < SAME);
        }
        if self.sent.len() >= REMEMBERED {
            self.sent.clear();
        }
        let at = Instant::now();
        self.sent.insert(sameness, Sent { name, count: 1, at });
    }

    fn object(&self, event: &ClusterEvent, namespace: &str) -> Object {
        let at = Time(emitted_at(event));
        let name = event.about.name.as_deref().unwrap_or("unnamed");
        let uid = event.about.uid.as_deref().unwrap_or_default();
        let said = hash(&format!("{uid} {} {}", event.reason, event.message));
        Object {
            metadata: ObjectMeta {
                name: event.shared.then(|| format!("{name}.{said}")),
                generate_name: (!event.shared).then(|| format!("{name}.")),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: event.about.clone(),
            reason: Some(event.reason.clone()),
            message: Some(event.message.clone()),
            type_: Some(
                match event.kind {
                    EventKind::Normal => "Normal",
                    EventKind::Warning => "Warning",
                }
                .to_owned(),
            ),
            count: Some(1),
            first_timestamp: Some(at.clone()),
            last_timestamp: Some(at),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: Some(self.host.clone()).filter(|host| !host.is_empty()),
            }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.host.clone()),
            ..Object::default()
        }
    }
}

/// True if the API server gave no answer, or can't accept an event now: it has too many requests, or
/// its storage or a webhook fails. An event that arrives late harms nothing.
fn may_be_accepted_later(error: &kube::Error) -> bool {
    let is_busy = matches!(error, kube::Error::Api(status) if matches!(status.code, 429 | 500));
    is_busy || is_outage(error)
}

/// The wall clock when an event was emitted.
fn emitted_at(event: &ClusterEvent) -> Timestamp {
    let now = Timestamp::now();
    now.checked_sub(event.emitted.elapsed()).unwrap_or(now)
}

/// Events about objects of the whole cluster are in the default namespace.
fn namespace(about: &ObjectReference) -> &str {
    about
        .namespace
        .as_deref()
        .filter(|namespace| !namespace.is_empty())
        .unwrap_or("default")
}

fn sameness(event: &ClusterEvent) -> Sameness {
    let about = &event.about;
    let name = about.name.clone().unwrap_or_default();
    (
        about.uid.clone(),
        name,
        event.kind,
        event.reason.clone(),
        event.message.clone(),
    )
}

#[cfg(test)]
mod tests;
