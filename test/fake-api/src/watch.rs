//! Watches.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::FakeApi;
use super::kinds::Kind;
use super::path::Target;
use super::select::selects;
use super::store::{Change, Store};

/// The time of a watch if its client sets none.
const LONGEST: Duration = Duration::from_secs(2700);

/// The time between two bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// The time between the last bookmark of a watch and its end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// An open watch.
pub(super) struct Watcher {
    target: Target,
    query: BTreeMap<String, String>,
    /// The client knows the changes up to this version.
    since: u64,
    events: UnboundedSender<io::Result<String>>,
}

impl Watcher {
    fn send(&self, kind: &str, object: &Value) -> bool {
        self.events.unbounded_send(Ok(line(kind, object))).is_ok()
    }

    /// Sends a change as this watch sees it: an object that its selectors stop matching is reported
    /// as deleted. False if the client is gone.
    pub(super) fn notify(&self, change: &Change) -> bool {
        if change.version <= self.since || !self.target.contains(&change.key) {
            return !self.events.is_closed();
        }
        let selected = |object: &Option<std::sync::Arc<Value>>| {
            object.clone().filter(|object| selects(&self.query, object))
        };
        match (selected(&change.old), selected(&change.new)) {
            (None, None) => !self.events.is_closed(),
            (None, Some(new)) => self.send("ADDED", &new),
            (Some(_), Some(new)) => self.send("MODIFIED", &new),
            (Some(old), None) => {
                let mut old = Value::clone(&old);
                old["metadata"]["resourceVersion"] = json!(change.version.to_string());
                self.send("DELETED", &old)
            }
        }
    }

    /// Breaks the connection of the watch.
    pub(super) fn break_off(&self) {
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        let _ = self.events.unbounded_send(Err(reset));
    }
}

/// An event of a watch. The object is written as it is: a copy for each watch would take longer
/// than all else.
fn line(kind: &str, object: &Value) -> String {
    format!("{{\"type\":{kind:?},\"object\":{object}}}\n")
}

/// The version that a watch begins after; 0 if it begins with all objects.
fn since(query: &BTreeMap<String, String>) -> u64 {
    let version = query.get("resourceVersion");
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Store {
    /// Starts a watch: first the changes since its version, or all objects if it has none. A watch
    /// from a version that is still to come tells nothing until then. One from a version that is
    /// forgotten fails.
    fn watch(
        &mut self,
        target: Target,
        query: BTreeMap<String, String>,
    ) -> UnboundedReceiver<io::Result<String>> {
        let (events, stream) = unbounded();
        let since = since(&query);
        let watcher = Watcher {
            target,
            query,
            since,
            events,
        };
        if since == 0 {
            for (_, object) in self.objects_of(&watcher.target) {
                if selects(&watcher.query, object) {
                    watcher.send("ADDED", object);
                }
            }
        } else {
            match self.changes_since(since) {
                Ok(changes) => changes.for_each(|change| {
                    watcher.notify(change);
                }),
                Err(failure) => {
                    watcher.send("ERROR", &failure.status());
                    return stream;
                }
            }
        }
        self.watchers.push(watcher);
        stream
    }
}

impl FakeApi {
    /// The body of a watch. It ends after the time that the client sets, and has bookmarks if the
    /// client accepts them.
    pub(super) fn watch(
        &self,
        kind: &Kind,
        target: Target,
        query: BTreeMap<String, String>,
    ) -> Body {
        let seconds = query
            .get("timeoutSeconds")
            .and_then(|text| text.parse().ok());
        let timeout = seconds.map_or(LONGEST, Duration::from_secs);
        let is_bookmarked = query
            .get("allowWatchBookmarks")
            .is_some_and(|value| value == "true");
        let bookmark = json!({"kind": kind.kind, "apiVersion": kind.version});
        let since = since(&query);
        let events = self.0.lock().store.watch(target, query);
        let now = Instant::now();
        let stream = Watch {
            api: self.clone(),
            events,
            since,
            end: now + timeout,
            next_bookmark: next_bookmark(now + timeout).filter(|_| is_bookmarked),
            bookmark,
        };
        Body::from_stream(futures::stream::unfold(stream, |mut watch| async {
            Some((watch.next().await?, watch))
        }))
    }
}

/// The time of the next bookmark of a watch that ends then. The last one comes shortly before.
fn next_bookmark(end: Instant) -> Option<Instant> {
    let now = Instant::now();
    let last = end.checked_sub(LAST_BOOKMARK).filter(|last| *last > now)?;
    Some((now + BOOKMARKS).min(last))
}

/// The events of a watch.
struct Watch {
    api: FakeApi,
    events: UnboundedReceiver<io::Result<String>>,
    /// The client knows the changes up to this version.
    since: u64,
    end: Instant,
    next_bookmark: Option<Instant>,
    /// The object of a bookmark, without its version.
    bookmark: Value,
}

impl Watch {
    async fn next(&mut self) -> Option<io::Result<String>> {
        loop {
            let bookmark = self.next_bookmark.filter(|next| *next < self.end);
            tokio::select! {
                biased;
                event = self.events.next() => return event,
                () = sleep_until(bookmark.unwrap_or(self.end)) => {
                    bookmark?;
                    self.next_bookmark = next_bookmark(self.end);
                }
            }
            let version = self.api.0.lock().store.version;
            // A watch from a version that is still to come hears of no earlier one.
            if version >= self.since {
                let mut object = self.bookmark.clone();
                object["metadata"] = json!({"resourceVersion": version.to_string(),
                    "creationTimestamp": null});
                return Some(Ok(line("BOOKMARK", &object)));
            }
        }
    }
}
