//! The skeleton of a controller: watches feed queues with keys, workers reconcile the keys.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use hostloop_events::work::Work;
use tokio::time::{Instant, sleep, timeout};

use super::event_key::controller_of;
use super::{Context, EventKey};
use crate::cache::store::fraction;
use crate::cache::{Change, Store};
use crate::client::Resource;
use crate::queue::{Outcome, Queue, QueueKey};

/// Work that takes longer is an event before its end, too.
const LONG: Duration = Duration::from_millis(500);

/// The longest wait for a retry of what failed while the API server was away. Other failures wait for
/// longer, but an outage may end at any time.
const AWAY_RETRY: Duration = Duration::from_secs(15);

/// A controller under construction. It does nothing before [`Controller::run`].
///
/// `T` is the state that its workers share.
#[must_use = "a controller does nothing until it runs"]
pub struct Controller<T> {
    context: Context,
    shared: Arc<T>,
    ready: BoxFuture<'static, ()>,
    feeds: Vec<Box<dyn FnOnce() + Send>>,
    workers: Vec<BoxFuture<'static, ()>>,
    tasks: Vec<BoxFuture<'static, ()>>,
}

impl<T: Send + Sync + 'static> Controller<T> {
    /// Creates a controller without watches and workers.
    pub fn new(context: &Context, shared: Arc<T>) -> Self {
        Controller {
            context: context.clone(),
            shared,
            ready: Box::pin(std::future::ready(())),
            feeds: Vec::new(),
            workers: Vec::new(),
            tasks: Vec::new(),
        }
    }

    /// Starts the controller after `ready`: usually once its caches have seen every object.
    pub fn after<F>(mut self, ready: impl FnOnce(Arc<T>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.ready = Box::pin(ready(self.shared.clone()));
        self
    }

    /// Queues the keys that `keys` finds in each change, and in each object that exists at the
    /// start. `keys` runs inside the watch, so it must be quick.
    pub fn feed<O: Resource, K, I>(
        self,
        watch: &Store<O>,
        queue: &Queue<K>,
        keys: impl Fn(&Change<O>) -> I + Send + Sync + 'static,
    ) -> Self
    where
        K: QueueKey + Send + 'static,
        I: IntoIterator<Item = K>,
    {
        let queue = queue.clone();
        self.on_change(watch, move |change| {
            queue.add_all(keys(change));
        })
    }

    /// As [`Controller::feed`], but each key waits for `delay` in the queue.
    pub fn feed_after<O: Resource, K, I>(
        self,
        delay: Duration,
        watch: &Store<O>,
        queue: &Queue<K>,
        keys: impl Fn(&Change<O>) -> I + Send + Sync + 'static,
    ) -> Self
    where
        K: QueueKey + Send + 'static,
        I: IntoIterator<Item = K>,
    {
        let queue = queue.clone();
        self.on_change(watch, move |change| {
            for key in keys(change) {
                queue.add_after(key, delay);
            }
        })
    }

    /// Wakes the keys that wait for an object: when `name` names a changed object, it is looked up
    /// with `waiting` after `delay`, outside the watch. `label` is that of [`Controller::work`].
    pub fn wake<O: Resource, K, I>(
        self,
        label: &'static str,
        watch: &Store<O>,
        delay: Duration,
        name: impl Fn(&Change<O>) -> Option<String> + Send + Sync + 'static,
        queue: &Queue<K>,
        waiting: impl Fn(&T, &str) -> I + Clone + Send + Sync + 'static,
    ) -> Self
    where
        K: QueueKey + Send + 'static,
        I: IntoIterator<Item = K, IntoIter: Send> + Send,
    {
        let (names, queue) = (self.context.queue(), queue.clone());
        self.feed_after(delay, watch, &names, name)
            .work(label, &names, 1, move |this, name| {
                let (queue, waiting) = (queue.clone(), waiting.clone());
                async move {
                    queue.wake_each(waiting(&this, &name)).await;
                    Outcome::Done
                }
            })
    }

    fn on_change<O: Resource>(
        mut self,
        watch: &Store<O>,
        handler: impl Fn(&Change<O>) + Send + Sync + 'static,
    ) -> Self {
        let watch = watch.clone();
        self.feeds.push(Box::new(move || watch.on_change(handler)));
        self
    }

    /// Reconciles the keys of a queue, at most `workers` at once. `name` labels the queue in the
    /// metrics.
    pub fn work<K, F>(
        mut self,
        name: &'static str,
        queue: &Queue<K>,
        workers: usize,
        reconcile: impl Fn(Arc<T>, K) -> F + Send + Sync + 'static,
    ) -> Self
    where
        K: EventKey + QueueKey + Send + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let (context, queue, shared) = (self.context.clone(), queue.clone(), self.shared.clone());
        self.workers.push(Box::pin(async move {
            work(&context, name, &queue, workers, move |key| {
                reconcile(shared.clone(), key)
            })
            .await;
        }));
        self
    }

    /// Queues these keys after each `period`; never if it is zero.
    pub fn resync<K, I>(
        mut self,
        period: Duration,
        queue: &Queue<K>,
        keys: impl Fn(&T) -> I + Send + 'static,
    ) -> Self
    where
        K: QueueKey + Send + 'static,
        I: IntoIterator<Item = K, IntoIter: Send> + Send,
    {
        if period.is_zero() {
            return self;
        }
        let (queue, shared) = (queue.clone(), self.shared.clone());
        self.tasks.push(Box::pin(async move {
            loop {
                sleep(period).await;
                queue.add_each(keys(&shared)).await;
            }
        }));
        self
    }

    /// Runs `task` next to the workers, and drops it at the stop.
    pub fn beside<F>(mut self, task: impl FnOnce(Arc<T>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.push(Box::pin(task(self.shared.clone())));
        self
    }

    /// Starts feeding the queues from the watches.
    pub(crate) fn listen(&mut self) {
        self.feeds.drain(..).for_each(|feed| feed());
    }

    /// Runs until the context's stop. Workers first finish the keys they hold.
    pub async fn run(mut self) {
        let stop = self.context.stop.clone();
        let ready = stop.run_until_cancelled(&mut self.ready);
        if ready.await.is_none() {
            return;
        }
        self.listen();
        tokio::join!(
            join_all(self.workers),
            stop.run_until_cancelled(join_all(self.tasks)),
            stop.cancelled(),
        );
    }
}

/// Waits for a period, or forever if it is zero: then a flag switches the work off.
pub(crate) async fn pause(period: Duration) {
    if period.is_zero() {
        std::future::pending().await
    } else {
        sleep(period).await
    }
}

/// An interval, varied by up to a tenth: processes that started together should spread out.
pub(crate) fn about(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * fraction())
}

/// Works on a queue until the stop. Counts the outcomes, and records them as events.
async fn work<K, F>(
    context: &Context,
    name: &'static str,
    queue: &Queue<K>,
    workers: usize,
    on: impl Fn(K) -> F,
) where
    K: EventKey + QueueKey + Send + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    let shown = queue.clone();
    let metrics = &context.metrics;
    metrics.watch_queue(name, Box::new(move || shown.stats()));
    let until_stopped = async {
        context.stop.cancelled().await;
        queue.close();
    };
    let worked = queue.work(workers.max(1), |key: K, queued| {
        let mut event = Work::begin(controller_of(name), &key.text(), queued);
        let (queue, metrics, kube) = (queue.clone(), metrics.clone(), context.kube.clone());
        // The future is large, and every wrapper around it would hold another copy.
        let mut work = Box::pin(on(key.clone()));
        async move {
            let started = Instant::now();
            let outcome = match timeout(LONG, &mut work).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    event.takes_long();
                    work.await
                }
            };
            // Nothing else than the outage may be wrong with the key.
            let outcome = if kube.is_away() {
                queue.retried_within(&key, outcome, AWAY_RETRY)
            } else {
                outcome
            };
            metrics.worked(name, outcome, started.elapsed());
            event.end(queue.next_try(&key, outcome));
            outcome
        }
    });
    tokio::join!(worked, until_stopped);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::ResourceExt;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::testing::World;

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Log {
        fn note(&self, what: impl Into<String>) {
            self.0.lock().push(what.into());
        }

        fn taken(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_go_from_watches_through_queues_to_workers() {
        let world = World::new(&[]);
        let context = world.context.clone();
        let nodes = context.caches.nodes();
        let node = |name| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        world.add(&nodes, node("a"));
        let (queue, late) = (context.queue(), context.queue());
        let second = Duration::from_secs(1);
        let log = Arc::new(Log::default());
        let name = |change: &Change<Node>| Some(change.object().name_any());
        let controller = Controller::new(&context, log.clone())
            .after(|log| async move {
                sleep(second).await;
                log.note("ready");
            })
            .feed(&nodes, &queue, name)
            .feed_after(10 * second, &nodes, &late, name)
            .work("now", &queue, 1, |log, key| async move {
                log.note(key);
                Outcome::Done
            })
            .work("late", &late, 1, |log, key: String| async move {
                log.note(format!("late {key}"));
                Outcome::Done
            })
            .resync(60 * second, &queue, |_| ["again".to_owned()])
            .resync(Duration::ZERO, &queue, |_| ["never".to_owned()])
            .beside(|log| async move {
                log.note("beside");
                std::future::pending().await
            });
        let running = tokio::spawn(controller.run());
        let millisecond = Duration::from_millis(1);
        sleep(millisecond).await;
        assert!(log.taken().is_empty(), "it waits until it is ready");
        sleep(second).await;
        assert_eq!(log.taken(), ["ready", "beside", "a"]);
        world.add(&nodes, node("b"));
        sleep(millisecond).await;
        assert_eq!(log.taken(), ["b"]);
        sleep(10 * second).await;
        assert_eq!(log.taken(), ["late a", "late b"]);
        sleep(60 * second).await;
        assert_eq!(log.taken(), ["again"]);
        context.stop.cancel();
        running.await.expect("no panic");
        world.add(&nodes, node("c"));
        assert_eq!(queue.depth(), 0, "a stopped controller takes no keys");
    }

    #[tokio::test]
    async fn a_stop_before_it_is_ready_ends_it() {
        let context = World::new(&[]).context;
        context.stop.cancel();
        let never = |_| std::future::pending();
        Controller::new(&context, Arc::new(()))
            .after(never)
            .run()
            .await;
    }
}
