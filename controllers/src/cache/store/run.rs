//! Runs a watch: lists, watches and retries.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::accepted::noticing;
use super::going_back::detecting;
use super::{Selectors, Store, WatchScope};
use crate::client::kube::{Resource, too_large};
use crate::client::{EventKind, Events};
use crate::metrics::Metrics;
use crate::queue::Backoff;

/// The wait after the first failure of a watch. It doubles with each further failure.
const RETRY: Duration = Duration::from_millis(500);
/// The longest wait.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often to look whether there is room for an object that was left out. A list of all objects
/// is costly, and a user can make and delete objects all the time.
const RELIST: Duration = Duration::from_secs(15 * 60);

/// The part of a kind that a watch selects.
#[derive(Debug)]
pub struct Range {
    /// The selector for each watch scope.
    pub selectors: Selectors,
    /// The current watch scope. The watch restarts if a new watch scope changes the selector.
    pub watch_scope: watch::Receiver<WatchScope>,
}

impl Default for Range {
    fn default() -> Self {
        Range {
            selectors: Selectors::default(),
            watch_scope: watch::channel(WatchScope::Whole).1,
        }
    }
}

impl Range {
    /// Waits until the watch scope selects something else than `from` does.
    async fn changed(&mut self, from: WatchScope) {
        let now = self.selectors.at(from).clone();
        let selectors = &self.selectors;
        if self
            .watch_scope
            .wait_for(|watch_scope: &WatchScope| *selectors.at(*watch_scope) != now)
            .await
            .is_err()
        {
            // The sender is gone, so the watch scope no longer changes.
            std::future::pending::<()>().await;
        }
    }
}

/// The kinds that get an event at an object that is too large. Pods are not among them: most have
/// nothing to do with the driver.
const ANNOUNCED: [&str; 6] = [
    "PersistentVolume",
    "PersistentVolumeClaim",
    "VolumeGroupSnapshot",
    "VolumeGroupSnapshotContent",
    "VolumeSnapshot",
    "VolumeSnapshotContent",
];

/// Where a watch reports what it delivers.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    pub metrics: Option<Arc<Metrics>>,
    /// Tells users of objects that are too large to be kept.
    pub events: Option<Events>,
}

impl<K: Resource> Store<K> {
    /// Watches what `api` selects until `stop`. A kind that the API server does not serve has no
    /// objects.
    pub async fn run(
        self,
        client: Client,
        api: impl FnOnce(Client) -> Api<K>,
        config: watcher::Config,
        stop: CancellationToken,
    ) {
        let api = api(self.noticed(&client));
        let followed = self.follow(api, config, || (), |_| ());
        stop.run_until_cancelled(followed).await;
    }

    /// Watches a range in all namespaces until `stop`. When the range changes, everything in it is
    /// listed again; objects outside the new range are reported as deleted.
    pub async fn run_within(
        self,
        client: Client,
        mut range: Range,
        reports: Reports,
        stop: CancellationToken,
    ) {
        let api = K::everywhere(self.noticed(&client));
        let kind = K::kind(&()).into_owned();
        let metrics = reports.metrics.unwrap_or_default();
        let (watched, large) = (metrics.watched(&kind), metrics.too_large(&kind));
        loop {
            let watch_scope = *range.watch_scope.borrow_and_update();
            let selector = range.selectors.at(watch_scope).clone();
            let config = selector.config();
            // A widened watch has the objects of all nodes, and runs on each.
            let is_widened = selector.is_all() && !range.selectors.at(WatchScope::Narrow).is_all();
            let events = reports.events.as_ref().filter(|_| !is_widened);
            self.select(selector);
            let followed = self.follow(
                api.clone(),
                config,
                || _ = watched.inc(),
                |object| {
                    large.inc();
                    tell(events, object);
                },
            );
            tokio::select! {
                () = stop.cancelled() => return,
                () = followed => return,
                () = range.changed(watch_scope) => {
                    tracing::debug!(kind, "a watch restarts with other selectors");
                }
                () = self.gained_room() => {
                    tracing::debug!(kind, "a watch restarts: there is room for what was left out");
                }
            }
        }
    }

    /// Completes a list without objects: the API server does not serve the kind.
    pub(crate) fn list_none(&self) {
        self.take(Event::Init);
        self.take(Event::InitDone);
    }

    /// Waits until an object that was left out because of others has room. What a list finds gone
    /// counts until the list ends, so another list may have to follow.
    async fn gained_room(&self) {
        loop {
            tokio::time::sleep(RELIST).await;
            if self.has_room() {
                return;
            }
        }
    }

    /// A client for the watch. It clears the watch's error as soon as the API server accepts a
    /// request, and finds out if the server went back.
    fn noticed(&self, client: &Client) -> Client {
        let (watch, of_list) = (self.clone(), self.clone());
        let client = detecting(client, move || of_list.went_back());
        noticing(&client, move || watch.note(None))
    }

    /// Applies the watch's events to the store and retries after errors. Counts the events of
    /// objects, and reports objects that are too large.
    async fn follow(
        &self,
        api: Api<K>,
        config: watcher::Config,
        count: impl Fn(),
        report: impl Fn(&K),
    ) {
        let mut failures = 0_u32;
        let events = watcher(api, config);
        tokio::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A retried list also begins with `Init`, so it does not prove success.
                    if !matches!(event, Event::Init) {
                        failures = 0;
                        self.note(None);
                    }
                    if is_of_object(&event) {
                        count();
                    }
                    if let Some(object) = self.take(event) {
                        report(&object);
                    }
                    for object in self.pushed_out() {
                        report(&object);
                    }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    if is_unknown_kind(&error) {
                        self.list_none();
                        self.note(None);
                    } else {
                        tracing::warn!(kind = %K::kind(&()), %error, "watching failed");
                        self.note(Some(error.to_string()));
                    }
                    tokio::time::sleep(backoff(failures)).await;
                }
            }
        }
    }
}

/// Tells the users of an object that it is too large to be kept.
fn tell<K: Resource>(events: Option<&Events>, object: &K) {
    if let Some(events) = events
        && ANNOUNCED.contains(&&*K::kind(&()))
    {
        events.once(object, EventKind::Warning, "TooLarge", too_large::<K>());
    }
}

fn is_of_object<K>(event: &Event<K>) -> bool {
    !matches!(event, Event::Init | Event::InitDone)
}

fn is_unknown_kind(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

/// Half of the wait is random, so that watches that failed together do not retry together.
fn backoff(failures: u32) -> Duration {
    let whole = Backoff {
        start: RETRY,
        max: RETRY_MAX,
    }
    .delay(failures.max(1));
    whole / 2 + (whole / 2).mul_f64(fraction())
}

/// A number in 0..1 that differs from call to call and from process to process.
pub(crate) fn fraction() -> f64 {
    let random = RandomState::new().hash_one(std::process::id());
    (random >> 11) as f64 / (1_u64 << 53) as f64
}
