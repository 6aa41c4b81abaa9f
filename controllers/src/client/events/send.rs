//! Sending events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event as Object, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Event, Kind};
use crate::cache::scope::hash;
use crate::controller::metrics::Metrics;

/// A normal event waits until there has been no newer one for this long.
const QUIET: Duration = Duration::from_secs(5);
/// The longest such wait.
const HELD: Duration = Duration::from_secs(120);
/// The wait between two normal events.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long the remaining events may take after the stop.
const HURRY: Duration = Duration::from_secs(3);
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a repeated event only increases the count of the first.
const SAME: Duration = Duration::from_secs(600);
/// The maximum number of events remembered for counting repeats.
const REMEMBERED: usize = 4096;
/// The API server's maximum message length in bytes.
const MAX_MESSAGE: usize = 1024;

/// The fields that identify repeats of an event.
type Sameness = (Option<String>, String, Kind, String, String);

struct Sent {
    name: String,
    count: i32,
    at: Instant,
}

/// The waiting events.
pub(super) struct Backlog {
    warnings: mpsc::Receiver<Event>,
    normal: mpsc::Receiver<Event>,
    /// The normal event that is sent next.
    first: Option<Event>,
    /// When the newest normal event was emitted.
    last: watch::Receiver<Instant>,
    /// The earliest time at which the rate allows a normal event.
    free: Instant,
}

impl Backlog {
    pub(super) fn new(
        warnings: mpsc::Receiver<Event>,
        normal: mpsc::Receiver<Event>,
        last: watch::Receiver<Instant>,
    ) -> Self {
        Backlog {
            warnings,
            normal,
            first: None,
            last,
            free: Instant::now(),
        }
    }

    /// Returns the next event once it is due; `None` after the last one.
    async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            biased;
            Some(warning) = self.warnings.recv() => Some(warning),
            Some(event) = normal(&mut self.normal, &mut self.first, &self.last, self.free) => {
                self.free = Instant::now() + INTERVAL;
                Some(event)
            }
            else => None,
        }
    }

    /// Stops accepting new events.
    fn close(&mut self) {
        self.warnings.close();
        self.normal.close();
    }

    /// Returns the next event, due or not.
    fn take(&mut self) -> Option<Event> {
        let warning = self.warnings.try_recv().ok();
        let next = warning.or_else(|| self.first.take());
        next.or_else(|| self.normal.try_recv().ok())
    }

    fn len(&self) -> usize {
        self.warnings.len() + self.normal.len() + usize::from(self.first.is_some())
    }
}

/// The next normal event, once it is due. A caller may drop this and call it again: the event stays
/// in `first`.
async fn normal(
    waiting: &mut mpsc::Receiver<Event>,
    first: &mut Option<Event>,
    last: &watch::Receiver<Instant>,
    free: Instant,
) -> Option<Event> {
    if first.is_none() {
        *first = waiting.recv().await;
    }
    let emitted = first.as_ref()?.emitted;
    loop {
        let due = (*last.borrow() + QUIET).min(emitted + HELD).max(free);
        if Instant::now() >= due {
            return first.take();
        }
        sleep_until(due).await;
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
    pub(super) fn new(client: Client, component: &str, metrics: Arc<Metrics>) -> Self {
        Sender {
            client,
            component: component.to_owned(),
            host: std::env::var("NODE_NAME").unwrap_or_default(),
            metrics,
            sent: HashMap::new(),
        }
    }

    /// Sends events until the queue ends or `stop`, then sends those that still wait.
    pub(super) async fn run(mut self, mut backlog: Backlog, stop: CancellationToken) {
        while let Some(Some(event)) = stop.run_until_cancelled(backlog.next()).await {
            self.try_send(&event).await;
        }
        backlog.close();
        let all = async {
            while let Some(event) = backlog.take() {
                self.try_send(&event).await;
            }
        };
        let in_time = tokio::time::timeout(HURRY, all).await.is_ok();
        if !in_time {
            // The event that was being sent may have arrived or not.
            let events = backlog.len() + 1;
            tracing::info!(events, "events were not sent before the stop");
        }
    }

    async fn try_send(&mut self, event: &Event) {
        match tokio::time::timeout(DEADLINE, self.send(event)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.metrics.event_lost();
                tracing::debug!(reason = %event.reason, %error, "an event was not accepted");
            }
            Err(_) => self.metrics.event_lost(),
        }
    }

    async fn send(&mut self, event: &Event) -> Result<(), kube::Error> {
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

    fn object(&self, event: &Event, namespace: &str) -> Object {
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
            message: Some(cut(&event.message)),
            type_: Some(
                match event.kind {
                    Kind::Normal => "Normal",
                    Kind::Warning => "Warning",
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

/// The wall clock when an event was emitted.
fn emitted_at(event: &Event) -> Timestamp {
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

fn sameness(event: &Event) -> Sameness {
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

fn cut(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let mut end = MAX_MESSAGE - "…".len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &message[..end])
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::Value;

    use super::*;
    use crate::client::events::Events;

    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some("ns".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(format!("uid-{name}")),
            ..ObjectReference::default()
        }
    }

    #[tokio::test]
    async fn the_same_again_is_counted() {
        let calls: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let seen = calls.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = seen.clone();
            async move {
                let call = format!("{} {}", request.method(), request.uri().path());
                let body = request.into_body().collect_bytes().await.expect("a body");
                let mut body: Value = serde_json::from_slice(&body).expect("JSON");
                let known = {
                    let mut seen = seen.lock().expect("calls");
                    seen.push((call, body.clone()));
                    seen.len()
                };
                body["metadata"] = json!({"name": format!("e{known}")});
                body["involvedObject"] = json!({});
                let bytes = serde_json::to_vec(&body).expect("JSON");
                Ok::<_, Infallible>(Response::new(Body::from(bytes)))
            }
        });
        let client = Client::new(service, "default");
        let metrics = Arc::new(Metrics::default());
        let (events, backlog) = Events::queued(metrics.clone());
        for (name, message) in [
            ("a", "no room"),
            ("a", "no room"),
            ("a", "other"),
            ("b", "no room"),
        ] {
            events.emit(
                about(name),
                Kind::Warning,
                "ProvisioningFailed",
                message.to_owned(),
            );
        }
        drop(events);
        let sender = Sender::new(client, "d", metrics);
        sender.run(backlog, CancellationToken::new()).await;
        let calls = calls.lock().expect("calls");
        let emitted: Vec<_> = calls
            .iter()
            .map(|(call, body)| (call.as_str(), body["count"].clone()))
            .collect();
        let events = "/api/v1/namespaces/ns/events";
        assert_eq!(
            emitted,
            [
                (format!("POST {events}").as_str(), json!(1)),
                (format!("PATCH {events}/e1").as_str(), json!(2)),
                (format!("POST {events}").as_str(), json!(1)),
                (format!("POST {events}").as_str(), json!(1)),
            ]
        );
        assert_eq!(calls[0].1["type"], "Warning");
        assert_eq!(calls[0].1["involvedObject"]["uid"], "uid-a");
    }

    #[tokio::test]
    async fn a_shared_event_is_created_once() {
        let names: Arc<Mutex<Vec<String>>> = Arc::default();
        let known = names.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let known = known.clone();
            async move {
                let body = request.into_body().collect_bytes().await.expect("a body");
                let body: Value = serde_json::from_slice(&body).expect("JSON");
                let name = body["metadata"]["name"]
                    .as_str()
                    .expect("a name")
                    .to_owned();
                let mut known = known.lock().expect("names");
                let (code, answer) = match known.contains(&name) {
                    true => (
                        409,
                        json!({"kind": "Status", "code": 409, "reason": "AlreadyExists"}),
                    ),
                    false => (201, body),
                };
                known.push(name);
                let bytes = serde_json::to_vec(&answer).expect("JSON");
                let answer = Response::builder().status(code).body(Body::from(bytes));
                Ok::<_, Infallible>(answer.expect("a response"))
            }
        });
        let client = Client::new(service, "default");
        for node in 0..3 {
            let metrics = Arc::new(Metrics::default());
            let (events, backlog) = Events::queued(metrics.clone());
            let claim: k8s_openapi::api::core::v1::PersistentVolumeClaim =
                serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns"}}))
                    .expect("a claim");
            events.shared_warning(&claim, "Refused", "no such pool".to_owned());
            events.shared_warning(&claim, "Refused", format!("other {}", node / 2));
            drop(events);
            let sender = Sender::new(client.clone(), "d", metrics);
            let stop = CancellationToken::new();
            sender.run(backlog, stop).await;
        }
        let mut names = names.lock().expect("names").clone();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    fn emit(events: &Events, kind: Kind) {
        events.emit(about("c"), kind, "Reason", String::new());
    }

    #[tokio::test(start_paused = true)]
    async fn normal_events_wait_until_the_work_rests_and_warnings_do_not() {
        let (events, mut backlog) = Events::queued(Arc::default());
        let begun = Instant::now();
        let working = events.clone();
        let busy = tokio::spawn(async move {
            for _ in 0..400 {
                emit(&working, Kind::Normal);
                tokio::time::sleep(QUIET / 2).await;
            }
        });
        tokio::time::sleep(QUIET / 4).await;
        emit(&events, Kind::Warning);
        let next = backlog.next().await.map(|event| event.kind);
        assert_eq!((next, begun.elapsed()), (Some(Kind::Warning), QUIET / 4));
        let next = backlog.next().await.map(|event| event.kind);
        assert_eq!((next, begun.elapsed()), (Some(Kind::Normal), HELD));
        busy.abort();
        while backlog.take().is_some() {}
        emit(&events, Kind::Normal);
        let emitted = Instant::now();
        backlog.next().await;
        assert_eq!(emitted.elapsed(), QUIET);
    }

    #[tokio::test(start_paused = true)]
    async fn normal_events_come_at_one_rate_and_behind_warnings() {
        let (events, mut backlog) = Events::queued(Arc::default());
        use Kind::{Normal, Warning};
        for kind in [Normal, Normal, Warning, Normal, Warning] {
            emit(&events, kind);
        }
        let begun = Instant::now();
        for (kind, after) in [
            (Warning, Duration::ZERO),
            (Warning, Duration::ZERO),
            (Normal, QUIET),
            (Normal, QUIET + INTERVAL),
            (Normal, QUIET + 2 * INTERVAL),
        ] {
            let next = backlog.next().await.map(|event| event.kind);
            assert_eq!((next, begun.elapsed()), (Some(kind), after));
        }
        drop(events);
        assert!(backlog.next().await.is_none());
    }

    #[tokio::test]
    async fn what_overflows_is_counted() {
        let metrics = Arc::new(Metrics::default());
        let (events, backlog) = Events::queued(metrics.clone());
        for kind in [Kind::Normal, Kind::Warning] {
            for _ in 0..crate::client::events::WAITING + 3 {
                emit(&events, kind);
            }
        }
        assert_eq!(backlog.len(), 2 * crate::client::events::WAITING);
        assert_eq!(metrics.lost_events(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_at_the_end_is_sent_unless_it_takes_too_long() {
        for (each, expected) in [
            (Duration::from_millis(10), 40..=40),
            (HURRY / 10, 10..=11),
            (2 * HURRY, 1..=1),
        ] {
            let calls = Arc::new(Mutex::new(0));
            let count = calls.clone();
            let service = tower::service_fn(move |_: Request<Body>| {
                let count = count.clone();
                async move {
                    *count.lock().expect("the count") += 1;
                    tokio::time::sleep(each).await;
                    let made = json!({"metadata": {"name": "e"}, "involvedObject": {}});
                    let made = serde_json::to_vec(&made).expect("JSON");
                    Ok::<_, Infallible>(Response::new(Body::from(made)))
                }
            });
            let metrics = Arc::new(Metrics::default());
            let (events, backlog) = Events::queued(metrics.clone());
            for number in 0..40 {
                let about = about(&number.to_string());
                events.emit(about, Kind::Normal, "Bound", String::new());
            }
            let stop = CancellationToken::new();
            let sender = Sender::new(Client::new(service, "default"), "d", metrics);
            let (began, ending) = (Instant::now(), stop.clone());
            tokio::join!(sender.run(backlog, stop), async {
                tokio::time::sleep(QUIET / 2).await;
                ending.cancel();
            });
            let sent = *calls.lock().expect("the count");
            assert!(expected.contains(&sent), "{sent} of {expected:?}");
            assert!(began.elapsed() <= QUIET / 2 + HURRY);
        }
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(600);
        assert!(cut(&long).len() <= MAX_MESSAGE && cut(&long).ends_with('…'));
    }
}
