//! How an actor reaches the API server. Each has a door of its own: it delays, counts and writes
//! down what passes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hostloop_fake_api::FakeApi;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tower::util::BoxCloneService;

use crate::dice::Dice;
use crate::{shim, trace};

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
    pub(crate) fn count(&mut self, what: &str) {
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

/// The API server, and what passes its doors. Clones share it.
#[derive(Clone)]
pub(crate) struct Doors {
    api: FakeApi,
    seed: u64,
    paces: Arc<Mutex<BTreeMap<String, Pace>>>,
    writes: Arc<watch::Sender<u64>>,
}

impl Doors {
    pub(crate) fn of(api: FakeApi, seed: u64) -> Doors {
        Doors {
            api,
            seed,
            paces: Arc::default(),
            writes: Arc::new(watch::Sender::new(0)),
        }
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
    pub(crate) fn service(
        &self,
        actor: &'static str,
    ) -> BoxCloneService<Request<Body>, Response<Body>, kube::Error> {
        let (doors, client) = (self.clone(), self.api.connect(actor).client());
        BoxCloneService::new(tower::service_fn(move |request| {
            let (doors, client) = (doors.clone(), client.clone());
            async move { doors.pass(actor, &client, request).await }
        }))
    }

    async fn pass(
        &self,
        actor: &'static str,
        client: &Client,
        request: Request<Body>,
    ) -> Result<Response<Body>, kube::Error> {
        let number = {
            let mut paces = self.paces.lock();
            let pace = paces.entry(actor.to_owned()).or_default();
            pace.count(&format!(
                "{actor} {} {}",
                request.method(),
                request.uri().path()
            ));
            pace.total
        };
        let mut dice = Dice::of(self.seed, actor, number);
        tokio::time::sleep(dice.millis(1, 5)).await;
        let method = request.method().clone();
        if method == Method::GET {
            return client.send(request).await;
        }
        let path = request.uri().path().to_owned();
        let (head, body) = request.into_parts();
        let bytes = body.collect_bytes().await?;
        // Most writes renew a lease.
        let is_lease = path.contains("/leases");
        let text = (!is_lease).then(|| shown(&bytes));
        let request = Request::from_parts(head, Body::from(bytes.to_vec()));
        let answer = client.send(request).await?;
        if let Some(text) = text {
            let code = answer.status().as_u16();
            trace::line(actor, format!("{method} {path} {text} → {code}"));
        }
        if !is_lease && !path.contains("/events") {
            self.writes.send_modify(|writes| *writes += 1);
        }
        tokio::time::sleep(dice.millis(0, 5)).await;
        Ok(answer)
    }
}

/// The part of a body that says what changes.
fn shown(bytes: &[u8]) -> String {
    let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else {
        return String::new();
    };
    if body["kind"] == "Event" {
        let about = &body["involvedObject"];
        let about = if about.is_null() {
            &body["regarding"]
        } else {
            about
        };
        let note = if body["message"].is_null() {
            &body["note"]
        } else {
            &body["message"]
        };
        return format!(
            "{} {}: {} {note}",
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
