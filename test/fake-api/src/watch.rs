//! Watches.

use std::collections::BTreeMap;
use std::convert::Infallible;

use axum::body::Body;
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use serde_json::{Value, json};

use super::path::Target;
use super::select::selects;
use super::store::{Change, Store};

/// An open watch.
pub(super) struct Watcher {
    target: Target,
    query: BTreeMap<String, String>,
    events: UnboundedSender<String>,
}

impl Watcher {
    fn send(&self, kind: &str, object: &Value) -> bool {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.events.unbounded_send(line).is_ok()
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
    pub(super) fn watch(&mut self, target: Target, query: BTreeMap<String, String>) -> Body {
        let (events, stream) = unbounded();
        let since = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        let watcher = Watcher { target, query, events };
        for change in self.changes.iter().filter(|change| since > 0 && change.version > since) {
            watcher.notify(change);
        }
        for (key, object) in self.objects.iter().filter(|_| since == 0) {
            if watcher.target.contains(key) && selects(&watcher.query, object) {
                watcher.send("ADDED", object);
            }
        }
        self.watchers.push(watcher);
        Body::from_stream(stream.map(Ok::<_, Infallible>))
    }
}
