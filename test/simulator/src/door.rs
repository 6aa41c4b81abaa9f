//! How an actor reaches the API server. Each has a door of its own: it delays, counts and writes
//! down what passes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hostloop_fake_api::{Connection, FakeApi};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tower::util::BoxCloneService;

use crate::dice::Dice;
use crate::model::view::{event_about, event_note};
use crate::{shim, trace};

mod answers;
mod secret_reads;

use answers::{AnswerOutcome, Answers, Refusal};
pub(crate) use secret_reads::SecretReads;

/// More requests of one actor in a virtual minute come from a loop that does not wait.
const PER_MINUTE: u64 = 3000;
/// More requests of one actor at one virtual instant come from a loop that does not wait.
const PER_INSTANT: u64 = 400;

/// Counts what happens at one virtual instant and minute.
#[derive(Default)]
pub(crate) struct Pace {
    instant: (Duration, u64),
    minute: (u64, u64),
    pub(crate) total: u64,
}

impl Pace {
    /// Counts one more, and reports too many.
    pub(crate) fn count(&mut self, what: impl fmt::Display) {
        let now = shim::now();
        if self.instant.0 != now {
            self.instant = (now, 0);
        }
        if self.minute.0 != now.as_secs() / 60 {
            self.minute = (now.as_secs() / 60, 0);
        }
        self.instant.1 += 1;
        self.minute.1 += 1;
        self.total += 1;
        if self.instant.1 == PER_INSTANT {
            trace::violation(format!("a hot loop: {what}, {PER_INSTANT} at one instant"));
        }
        if self.minute.1 == PER_MINUTE {
            trace::violation(format!("a hot loop: {what}, {PER_MINUTE} in a minute"));
        }
    }
}

/// How late a late write is. It is longer than any caller waits, and than a lease lasts.
const LATE: Duration = Duration::from_secs(110);

/// What becomes of requests and answers on their way.
#[derive(Default)]
struct Weather {
    /// So many of a hundred answers to writes of hostloop are lost, and until when.
    lost: (u64, Duration),
    /// Who is late, and until when.
    late: BTreeMap<&'static str, Duration>,
    /// What becomes of single answers to hostloop.
    answers: Answers,
}

/// What becomes of one request.
struct Passage {
    number: u64,
    /// The rest of the time in which its actor is late.
    late: Option<Duration>,
    /// So many of a hundred answers are lost.
    lost: u64,
    /// What else becomes of its answer.
    outcome: AnswerOutcome,
}

/// The API server, and what passes its doors. Clones share it.
#[derive(Clone)]
pub(crate) struct Doors {
    api: FakeApi,
    seed: u64,
    paces: Arc<Mutex<BTreeMap<&'static str, Pace>>>,
    writes: Arc<watch::Sender<u64>>,
    weather: Arc<Mutex<Weather>>,
    pub(crate) secret_reads: SecretReads,
}

impl Doors {
    pub(crate) fn of(api: FakeApi, seed: u64) -> Doors {
        Doors {
            api,
            seed,
            paces: Arc::default(),
            writes: Arc::new(watch::Sender::new(0)),
            weather: Arc::default(),
            secret_reads: SecretReads::default(),
        }
    }

    /// Loses so many of a hundred answers to writes of hostloop, for some time.
    pub(crate) fn lose_answers(&self, percent: u64, time: Duration) {
        self.weather.lock().lost = (percent, shim::now() + time);
    }

    /// Makes an actor late for some time: it can't renew its lease, and its writes arrive long
    /// after it has sent them.
    pub(crate) fn be_late(&self, actor: &'static str, time: Duration) {
        let mut weather = self.weather.lock();
        weather.late.insert(actor, shim::now() + time);
    }

    /// Answers so many of a hundred requests of hostloop with this code, for some time.
    pub(crate) fn refuse(&self, percent: u64, code: u16, time: Duration) {
        let until = shim::now() + time;
        self.weather.lock().answers.refuse(percent, code, until);
    }

    /// Delays so many of a hundred answers to hostloop, for some time.
    pub(crate) fn delay_answers(&self, percent: u64, time: Duration) {
        let until = shim::now() + time;
        self.weather.lock().answers.delay(percent, until);
    }

    /// Lets everything pass again.
    pub(crate) fn clear_up(&self) {
        *self.weather.lock() = Weather::default();
    }

    /// Announces a change that no write has made.
    pub(crate) fn announce(&self) {
        self.writes.send_modify(|writes| *writes += 1);
    }

    /// Changes with each write, but for those of leases and events.
    pub(crate) fn writes(&self) -> watch::Receiver<u64> {
        self.writes.subscribe()
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.paces.lock().values().map(|pace| pace.total).sum()
    }

    /// A client of this actor.
    pub(crate) fn client(&self, actor: &'static str) -> Client {
        Client::new(self.service(actor), "default")
    }

    /// The connection of this actor.
    fn service(
        &self,
        actor: &'static str,
    ) -> BoxCloneService<Request<Body>, Response<Body>, kube::Error> {
        self.over(actor, &self.api.connect(actor))
    }

    /// A connection of this actor that can be cut.
    pub(crate) fn connect(&self, actor: &'static str) -> Connection {
        self.api.connect(actor)
    }

    /// What passes this connection.
    pub(crate) fn over(
        &self,
        actor: &'static str,
        connection: &Connection,
    ) -> BoxCloneService<Request<Body>, Response<Body>, kube::Error> {
        let (doors, client) = (self.clone(), connection.client());
        BoxCloneService::new(tower::service_fn(move |request| {
            let (doors, client) = (doors.clone(), client.clone());
            async move { doors.pass(actor, client, request).await }
        }))
    }

    /// Counts a request, and says what becomes of it.
    fn passage(&self, actor: &'static str, request: &Request<Body>) -> Passage {
        let mut paces = self.paces.lock();
        let pace = paces.entry(actor).or_default();
        let (method, path) = (request.method(), request.uri().path());
        pace.count(format_args!("{actor} {method} {path}"));
        self.secret_reads.note(actor, method, path);
        let (weather, now) = (self.weather.lock(), shim::now());
        let late = weather.late.get(actor);
        let is_hostloop = actor.starts_with("node") || actor.starts_with("leader");
        let (percent, until) = weather.lost;
        let outcome = if is_hostloop {
            weather.answers.outcome(now, (self.seed, actor, pace.total))
        } else {
            AnswerOutcome::default()
        };
        Passage {
            number: pace.total,
            late: late.and_then(|until| until.checked_sub(now)),
            lost: if is_hostloop && now < until {
                percent
            } else {
                0
            },
            outcome,
        }
    }

    async fn pass(
        self,
        actor: &'static str,
        client: Client,
        request: Request<Body>,
    ) -> Result<Response<Body>, kube::Error> {
        let passage = self.passage(actor, &request);
        let mut dice = Dice::of(self.seed, actor, passage.number);
        tokio::time::sleep(dice.millis(1, 5)).await;
        let is_lease = request.uri().path().contains("/leases");
        match passage.late {
            Some(left) if is_lease => tokio::time::sleep(left).await,
            Some(_) if request.method() != Method::GET => {
                // What is on its way arrives, even if its sender no longer waits.
                let sent = tokio::spawn(async move {
                    tokio::time::sleep(LATE).await;
                    self.deliver(actor, client, request, dice, passage).await
                });
                return sent
                    .await
                    .map_err(|ended| kube::Error::Service(ended.into()))?;
            }
            _ => {}
        }
        self.deliver(actor, client, request, dice, passage).await
    }

    /// Sends a request, unless it is refused, and loses so many of a hundred answers to writes.
    async fn deliver(
        self,
        actor: &'static str,
        client: Client,
        request: Request<Body>,
        mut dice: Dice,
        passage: Passage,
    ) -> Result<Response<Body>, kube::Error> {
        let Passage { lost, outcome, .. } = passage;
        let method = request.method().clone();
        let is_read = method == Method::GET;
        let refusal = outcome.refusal.filter(|one| is_read || !one.is_done);
        if let Some(refusal) = refusal {
            let path = request.uri().path();
            trace::line(actor, format!("{method} {path} → {}", refusal.code));
            return Ok(refusal.answer());
        }
        let version = self.api.version();
        if is_read {
            let answer = client.send(request).await;
            wait(outcome.delay).await;
            return self.arrive(version, answer);
        }
        let path = request.uri().path().to_owned();
        let (head, body) = request.into_parts();
        let bytes = body.collect_bytes().await?;
        // Most writes renew a lease.
        let is_lease = path.contains("/leases");
        let text = (!is_lease).then(|| shown(&bytes));
        let request = Request::from_parts(head, Body::from(bytes.to_vec()));
        let answer = client.send(request).await?;
        let is_lost = lost > 0 && dice.percent(lost);
        if let Some(text) = text {
            let code = answer.status().as_u16();
            let end = match outcome.refusal {
                _ if is_lost => ", which is lost".to_owned(),
                Some(refusal) => format!(", which arrives as {}", refusal.code),
                None => String::new(),
            };
            trace::line(actor, format!("{method} {path} {text} → {code}{end}"));
        }
        if !is_lease && !path.contains("/events") {
            self.announce();
        }
        tokio::time::sleep(dice.millis(0, 5)).await;
        wait(outcome.delay).await;
        if is_lost {
            return Err(reset());
        }
        let answer = outcome.refusal.map_or(answer, Refusal::answer);
        self.arrive(version, Ok(answer))
    }

    /// Lets an answer arrive to a request that was sent at this version. A server that is restored from a
    /// backup starts again, and its connections end.
    fn arrive(
        &self,
        version: u64,
        answer: Result<Response<Body>, kube::Error>,
    ) -> Result<Response<Body>, kube::Error> {
        if self.api.version() < version {
            Err(reset())
        } else {
            answer
        }
    }
}

/// What a caller sees of a connection that ended.
fn reset() -> kube::Error {
    let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    kube::Error::Service(error.into())
}

/// Waits for a late answer.
async fn wait(delay: Duration) {
    // Even the shortest sleep changes who is next.
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

/// The part of a body that says what changes.
fn shown(bytes: &[u8]) -> String {
    let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else {
        return String::new();
    };
    if body["kind"] == "Secret" {
        return format!("secret {}", body["metadata"]["name"]);
    }
    if body["kind"] == "Event" {
        let (about, note) = (event_about(&body), event_note(&body));
        return format!(
            "{} {}: {} {note:?}",
            about["kind"], about["name"], body["reason"]
        );
    }
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    let mut text = body.to_string();
    if text.len() > 600 {
        let end = (0..=600).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
    }
    text
}
