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
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Event, Kind};
use crate::runtime::metrics::Metrics;
use crate::runtime::scope::hash;

/// How long nothing must have been told before news is sent.
const QUIET: Duration = Duration::from_secs(5);
/// And as much more for each that waits: where there was much to do, others may not be done with it.
const EACH: Duration = Duration::from_secs(2);
/// At most.
const LONGEST_QUIET: Duration = Duration::from_secs(60);
/// How long news waits for that.
const HELD: Duration = Duration::from_secs(120);
/// The pause after an event, in times of what it took.
const YIELD: u32 = 20;
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long what waits is sent when the process is to end.
const HURRY: Duration = Duration::from_secs(3);
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// For how long the same event again is counted in the first.
const SAME: Duration = Duration::from_secs(600);
/// Events that are remembered for that, at most.
const REMEMBERED: usize = 4096;
/// What the API server takes of a message, in bytes.
const MAX_MESSAGE: usize = 1024;

/// What makes two events the same.
type Sameness = (Option<String>, String, Kind, String, String);

struct Sent {
    name: String,
    count: i32,
    at: Instant,
}

/// When events are sent.
#[derive(Debug)]
pub(super) enum Pace {
    /// At once.
    AtOnce,
    /// When none was told for a while, the last of which is here, and with pauses: where there is
    /// more to do than can be done, news of what went well is the least of it.
    Yielding(watch::Receiver<Instant>),
}

impl Pace {
    /// Waits for the time to send an event that was told then, and behind which so many wait.
    async fn due(&self, told: Instant, waiting: impl Fn() -> usize) {
        let Pace::Yielding(last) = self else { return };
        loop {
            let due = (*last.borrow() + quiet(waiting())).min(told + HELD);
            if Instant::now() >= due {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }

    /// The pause after an event that took so long.
    fn pause(&self, took: Duration) -> Duration {
        match self {
            Pace::AtOnce => Duration::ZERO,
            Pace::Yielding(_) => (took * YIELD).min(LONGEST_PAUSE),
        }
    }
}

/// How long nothing must have been told while so many wait behind the first.
fn quiet(waiting: usize) -> Duration {
    let each = EACH.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX));
    QUIET.saturating_add(each).min(LONGEST_QUIET)
}

/// Sends events, one after the other.
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

    /// Sends what comes, until there is no more; after `stop`, what has come.
    pub(super) async fn run(
        mut self,
        mut waiting: mpsc::Receiver<Event>,
        pace: Pace,
        stop: CancellationToken,
    ) {
        while let Some(Some(event)) = stop.run_until_cancelled(waiting.recv()).await {
            let due = pace.due(event.told, || waiting.len());
            if stop.run_until_cancelled(due).await.is_none() {
                return self.hurry(Some(event), waiting).await;
            }
            let since = Instant::now();
            self.try_send(&event).await;
            let pause = tokio::time::sleep(pace.pause(since.elapsed()));
            stop.run_until_cancelled(pause).await;
        }
        let next = waiting.try_recv().ok();
        self.hurry(next, waiting).await;
    }

    /// Sends what waits without a pause, for the process is about to end.
    async fn hurry(&mut self, first: Option<Event>, mut waiting: mpsc::Receiver<Event>) {
        waiting.close();
        let all = async {
            let mut next = first;
            while let Some(event) = next {
                self.try_send(&event).await;
                next = waiting.recv().await;
            }
        };
        let in_time = tokio::time::timeout(HURRY, all).await.is_ok();
        if !in_time {
            // The last may have got through or not.
            let events = waiting.len() + 1;
            tracing::info!(events, "told to stop before they were sent");
        }
    }

    async fn try_send(&mut self, event: &Event) {
        match tokio::time::timeout(DEADLINE, self.send(event)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.metrics.event_lost();
                tracing::debug!(reason = %event.reason, %error, "an event was not taken");
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
            let patch = json!({"count": count, "lastTimestamp": Time(told_at(event))});
            let params = PatchParams::default();
            match api.patch(&sent.name, &params, &Patch::Merge(patch)).await {
                Ok(_) => {
                    sent.count = count;
                    return Ok(());
                }
                // It has been cleaned away: tell it anew.
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
        let at = Time(told_at(event));
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

/// When an event was told, by the clock.
fn told_at(event: &Event) -> Timestamp {
    let now = Timestamp::now();
    now.checked_sub(event.told.elapsed()).unwrap_or(now)
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
    use crate::runtime::events::Events;

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
        let (events, waiting) = Events::collected(metrics.clone());
        for (name, message) in [
            ("a", "no room"),
            ("a", "no room"),
            ("a", "other"),
            ("b", "no room"),
        ] {
            events.tell(
                about(name),
                Kind::Warning,
                "ProvisioningFailed",
                message.to_owned(),
            );
        }
        drop(events);
        let sender = Sender::new(client, "d", metrics);
        sender
            .run(waiting, Pace::AtOnce, CancellationToken::new())
            .await;
        let calls = calls.lock().expect("calls");
        let told: Vec<_> = calls
            .iter()
            .map(|(call, body)| (call.as_str(), body["count"].clone()))
            .collect();
        let events = "/api/v1/namespaces/ns/events";
        assert_eq!(
            told,
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
    async fn what_every_node_finds_is_told_once() {
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
            let (events, waiting) = Events::collected(metrics.clone());
            let claim: k8s_openapi::api::core::v1::PersistentVolumeClaim =
                serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns"}}))
                    .expect("a claim");
            events.shared_warning(&claim, "Refused", "no such pool".to_owned());
            events.shared_warning(&claim, "Refused", format!("other {}", node / 2));
            drop(events);
            let sender = Sender::new(client.clone(), "d", metrics);
            let stop = CancellationToken::new();
            sender.run(waiting, Pace::AtOnce, stop).await;
        }
        let mut names = names.lock().expect("names").clone();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn news_waits_until_the_work_rests() {
        let (tell, last) = watch::channel(Instant::now());
        let pace = Pace::Yielding(last);
        let begun = Instant::now();
        let busy = tokio::spawn(async move {
            for _ in 0..400 {
                tell.send_replace(Instant::now());
                tokio::time::sleep(QUIET / 2).await;
            }
        });
        pace.due(begun, || 0).await;
        assert_eq!(begun.elapsed(), HELD, "not for ever");
        busy.abort();
        for (waiting, quiet) in [(0, QUIET), (9, QUIET + 9 * EACH), (1000, LONGEST_QUIET)] {
            pace.due(Instant::now(), || waiting).await;
            // The last was told within the last pause of the work.
            let rested = begun.elapsed() - HELD;
            let expected = quiet - QUIET / 2..=quiet;
            assert!(expected.contains(&rested), "{waiting}: {rested:?}");
        }
        let told = Instant::now();
        Pace::AtOnce.due(told, || 9).await;
        assert_eq!(told.elapsed(), Duration::ZERO);
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
            let (events, waiting) = Events::collected(metrics.clone());
            for number in 0..40 {
                let about = about(&number.to_string());
                events.tell(about, Kind::Normal, "Bound", String::new());
            }
            let stop = CancellationToken::new();
            let sender = Sender::new(Client::new(service, "default"), "d", metrics);
            let pace = Pace::Yielding(watch::channel(Instant::now()).1);
            let (began, ending) = (Instant::now(), stop.clone());
            tokio::join!(sender.run(waiting, pace, stop), async {
                tokio::time::sleep(QUIET).await;
                ending.cancel();
            });
            let sent = *calls.lock().expect("the count");
            assert!(expected.contains(&sent), "{sent} of {expected:?}");
            assert!(began.elapsed() <= QUIET + HURRY);
        }
    }

    #[test]
    fn news_comes_the_slower_the_longer_it_takes() {
        let millis = Duration::from_millis;
        let yielding = Pace::Yielding(watch::channel(Instant::now()).1);
        for (pace, took, pause) in [
            (&Pace::AtOnce, millis(100), millis(0)),
            (&yielding, millis(2), millis(40)),
            (&yielding, millis(100), millis(2000)),
            (&yielding, DEADLINE, LONGEST_PAUSE),
        ] {
            assert_eq!(pace.pause(took), pause, "{pace:?} after {took:?}");
        }
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(600);
        assert!(cut(&long).len() <= MAX_MESSAGE && cut(&long).ends_with('…'));
    }
}
