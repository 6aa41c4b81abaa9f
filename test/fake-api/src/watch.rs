//! Watches.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
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
    events: UnboundedSender<io::Result<Bytes>>,
}

/// The lines of a change. Each is written once, however many watches send it: that takes
/// longer than all else.
pub(super) struct Lines<'c> {
    change: &'c Change,
    added: OnceCell<Bytes>,
    modified: OnceCell<Bytes>,
    deleted: OnceCell<Bytes>,
}

impl Lines<'_> {
    pub(super) fn of(change: &Change) -> Lines<'_> {
        Lines {
            change,
            added: OnceCell::new(),
            modified: OnceCell::new(),
            deleted: OnceCell::new(),
        }
    }

    /// The line for a watch that sees the object before and after the change, or only at one time.
    /// `None` if it never sees the object.
    fn line(&self, before: bool, after: bool) -> Option<Bytes> {
        let Change { old, new, .. } = self.change;
        let line = match (
            old.as_ref().filter(|_| before),
            new.as_ref().filter(|_| after),
        ) {
            (None, None) => return None,
            (None, Some(new)) => self.added.get_or_init(|| line("ADDED", new)),
            (Some(_), Some(new)) => self.modified.get_or_init(|| line("MODIFIED", new)),
            (Some(old), None) => self.deleted.get_or_init(|| {
                let mut old = Value::clone(old);
                old["metadata"]["resourceVersion"] = json!(self.change.version.to_string());
                line("DELETED", &old)
            }),
        };
        Some(line.clone())
    }
}

impl Watcher {
    fn send(&self, line: Bytes) -> bool {
        self.events.unbounded_send(Ok(line)).is_ok()
    }

    /// True if the selectors of this watch match an object.
    fn selects(&self, object: Option<&Value>) -> bool {
        object.is_some_and(|object| selects(&self.query, object))
    }

    /// Sends a change as this watch sees it: an object that its selectors stop matching is reported
    /// as deleted. False if the client is gone.
    pub(super) fn notify(&self, lines: &Lines) -> bool {
        let change = lines.change;
        if change.version <= self.since || !self.target.contains(&change.key) {
            return !self.events.is_closed();
        }
        let before = self.selects(change.old.as_deref());
        let after = self.selects(change.new.as_deref());
        match lines.line(before, after) {
            None => !self.events.is_closed(),
            Some(line) => self.send(line),
        }
    }

    /// Breaks the connection of the watch.
    pub(super) fn break_off(&self) {
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        let _ = self.events.unbounded_send(Err(reset));
    }
}

/// An event of a watch.
fn line(kind: &str, object: &Value) -> Bytes {
    format!("{{\"type\":{kind:?},\"object\":{object}}}\n").into()
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
    ) -> UnboundedReceiver<io::Result<Bytes>> {
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
                    watcher.send(line("ADDED", object));
                }
            }
        } else {
            match self.changes_since(since) {
                Ok(changes) => changes.for_each(|change| {
                    watcher.notify(&Lines::of(change));
                }),
                Err(failure) => {
                    watcher.send(line("ERROR", &failure.status()));
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
    events: UnboundedReceiver<io::Result<Bytes>>,
    /// The client knows the changes up to this version.
    since: u64,
    end: Instant,
    next_bookmark: Option<Instant>,
    /// The object of a bookmark, without its version.
    bookmark: Value,
}

impl Watch {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
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
