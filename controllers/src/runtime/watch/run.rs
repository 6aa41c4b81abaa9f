//! The watch itself: what the server tells, again and again.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::accepted::noticing;
use super::{Selectors, Store, Width};
use crate::runtime::queue::Backoff;
use crate::runtime::{Metrics, Resource};

/// The wait after the first failure of a watch, doubled with each.
const RETRY: Duration = Duration::from_millis(500);
/// At most.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// How many objects a list brings at once. They are taken in one by one, and weigh twenty times what
/// is kept of them: of five hundred, as others take, a new leader would need a third more memory than
/// ever after.
const PAGE: u32 = 100;

/// What every watch begins with.
pub(crate) fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// What is watched of a kind, and how wide.
#[derive(Debug)]
pub struct Range {
    /// What is asked for.
    pub selectors: Selectors,
    /// How wide; the watch begins anew when another width is told.
    pub width: watch::Receiver<Width>,
}

impl Default for Range {
    fn default() -> Self {
        Range {
            selectors: Selectors::default(),
            width: watch::channel(Width::Whole).1,
        }
    }
}

impl Range {
    /// Waits until something else is to be asked for than at this width.
    async fn changed(&mut self, from: Width) {
        let now = self.selectors.at(from).clone();
        let selectors = &self.selectors;
        let other = |width: &Width| *selectors.at(*width) != now;
        if self.width.wait_for(other).await.is_err() {
            // It stays as it is.
            std::future::pending::<()>().await;
        }
    }
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
        let told = self.follow(api, config, |_| {});
        stop.run_until_cancelled(told).await;
    }

    /// Watches a range in all namespaces until `stop`. When the range changes, everything in it is
    /// listed again; objects outside the new range are reported as deleted.
    pub async fn run_within(
        self,
        client: Client,
        mut range: Range,
        metrics: Option<Arc<Metrics>>,
        stop: CancellationToken,
    ) {
        let api = K::everywhere(self.noticed(&client));
        let kind = K::kind(&()).into_owned();
        let counted = metrics.map(|metrics| metrics.watched(&kind));
        loop {
            let width = *range.width.borrow_and_update();
            let selector = range.selectors.at(width).clone();
            let config = selector.config();
            self.select(selector);
            let told = self.follow(api.clone(), config, |events| {
                if let Some(counter) = &counted {
                    counter.inc_by(events);
                }
            });
            tokio::select! {
                () = stop.cancelled() => return,
                () = told => return,
                () = range.changed(width) => {
                    tracing::debug!(kind, "watching another part");
                }
            }
        }
    }

    /// A client that clears the watch's error as soon as the API server accepts a request.
    fn noticed(&self, client: &Client) -> Client {
        let watch = self.clone();
        noticing(client, move || watch.note(None))
    }

    /// Takes what the server tells of one part.
    async fn follow(&self, api: Api<K>, config: watcher::Config, count: impl Fn(u64)) {
        let mut failures = 0_u32;
        let events = watcher(api, config);
        tokio::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A list that is only tried again begins with this, too.
                    if !matches!(event, Event::Init) {
                        failures = 0;
                        self.note(None);
                    }
                    count(is_of_object(&event).into());
                    self.take(event);
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    if is_unknown_kind(&error) {
                        self.take(Event::Init);
                        self.take(Event::InitDone);
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

/// Half of it is chance: many watches that broke together must not come back together.
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
