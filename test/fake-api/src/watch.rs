//! Watches, and the bodies of answers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::codegen::Bytes;
use tonic::codegen::http::Response;

use super::Asked;
use super::path::Target;
use super::select::selects;
use super::store::{Change, Store};

/// An open watch.
pub(super) struct Watcher {
    target: Target,
    query: BTreeMap<String, String>,
    events: UnboundedSender<Bytes>,
}

impl Watcher {
    fn send(&self, kind: &str, object: &Value) -> bool {
        let mut line = json!({"type": kind, "object": object}).to_string();
        line.push('\n');
        self.events.send(line.into()).is_ok()
    }

    /// Sends a change as this watch sees it: an object that its selectors stop matching is reported
    /// as deleted. False if the client is gone.
    pub(super) fn notify(&self, change: &Change) -> bool {
        if !self.target.contains(&change.key) {
            return !self.events.is_closed();
        }
        let selected = |object: &Option<Value>| {
            object.as_ref().filter(|object| selects(&self.query, object)).cloned()
        };
        match (selected(&change.old), selected(&change.new)) {
            (None, None) => !self.events.is_closed(),
            (None, Some(new)) => self.send("ADDED", &new),
            (Some(_), Some(new)) => self.send("MODIFIED", &new),
            (Some(mut old), None) => {
                old["metadata"]["resourceVersion"] = json!(change.version.to_string());
                self.send("DELETED", &old)
            }
        }
    }
}

impl Store {
    /// Starts a watch: first the changes since its version, or all objects if it has none.
    pub(super) fn watch(&mut self, asked: &Asked) -> Stream {
        let (events, stream) = unbounded_channel();
        let watcher = Watcher {
            target: Target::of(&asked.path).expect("the path of a kind"),
            query: asked.query.clone(),
            events,
        };
        let since = asked.query.get("resourceVersion").and_then(|text| text.parse().ok());
        match since.filter(|since| *since > 0) {
            Some(since) => {
                for change in self.changes.iter().filter(|change| change.version > since) {
                    watcher.notify(change);
                }
            }
            None => {
                for (key, object) in &self.objects {
                    if watcher.target.contains(key) && selects(&watcher.query, object) {
                        watcher.send("ADDED", object);
                    }
                }
            }
        }
        self.watchers.push(watcher);
        Stream::Open(stream)
    }
}

/// The body of an answer.
pub(super) enum Stream {
    /// A complete body.
    Once(Option<Bytes>),
    /// The events of a watch.
    Open(UnboundedReceiver<Bytes>),
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            Stream::Once(bytes) => Poll::Ready(bytes.take()),
            Stream::Open(events) => events.poll_recv(context),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

pub(super) fn response(code: u16, body: &Value) -> Response<Stream> {
    let bytes = serde_json::to_vec(body).expect("JSON");
    let response = Response::builder().status(code);
    let response = response.header("content-type", "application/json");
    response.body(Stream::Once(Some(bytes.into()))).expect("a response")
}
