//! Whether the pools answer: what Probe and `/healthz` say.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::Status;

use super::desk::{Desk, Fingerprint, Key};
use crate::pool::Pools;

/// How long the pools may take. Below what liveness probes wait, so that they get an answer.
pub const LIMIT: Duration = Duration::from_secs(2);

/// Looks at all pools and says which does not answer, and why.
pub type Check = dyn Fn() -> Result<(), String> + Send + Sync;

/// Probes, one at a time: whoever asks while one is under way shares its answer. A pool that
/// hangs thus holds one thread, however often it is asked for.
#[derive(Clone)]
pub struct Prober {
    check: Arc<Check>,
    limit: Duration,
    /// A desk of its own: nobody waits at shutdown for a pool that hangs.
    desk: Desk,
    /// What was said last, to log changes only.
    last: Arc<Mutex<Result<(), String>>>,
}

impl Prober {
    /// Of these pools, within [`LIMIT`].
    pub fn of(pools: Arc<Pools>) -> Self {
        Prober::new(Arc::new(move || check(&pools)), LIMIT)
    }

    /// Of anything that can be checked.
    pub fn new(check: Arc<Check>, limit: Duration) -> Self {
        Prober {
            check,
            limit,
            desk: Desk::new(),
            last: Arc::new(Mutex::new(Ok(()))),
        }
    }

    /// Ready, or why not.
    pub async fn ready(&self) -> Result<(), String> {
        let check = self.check.clone();
        let keys = vec![Key::Own("the readiness of the pools")];
        let checked = self.desk.run("Probe", keys, Fingerprint::of(b""), move || {
            Ok::<_, Status>(check())
        });
        let ready = match tokio::time::timeout(self.limit, checked).await {
            Ok(Ok(ready)) => ready,
            Ok(Err(status)) => Err(status.message().to_owned()),
            Err(_) => Err(format!(
                "the pools have not answered for {} s",
                self.limit.as_secs_f64()
            )),
        };
        self.tell(&ready);
        ready
    }

    fn tell(&self, ready: &Result<(), String>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == *ready {
            return;
        }
        match ready {
            Ok(()) => tracing::info!("ready again: all pools answer"),
            Err(why) => tracing::warn!(why = why.as_str(), "not ready"),
        }
        last.clone_from(ready);
    }
}

fn check(pools: &Pools) -> Result<(), String> {
    for slot in pools.slots() {
        let name = &slot.spec.name;
        match slot.state {
            Err(why) => return Err(format!("pool {name} is not available: {why}")),
            Ok(pool) => pool
                .alive()
                .map_err(|error| format!("pool {name} does not answer: {error}"))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn says_what_the_check_says() {
        let fine = Prober::new(Arc::new(|| Ok(())), LIMIT);
        assert_eq!(fine.ready().await, Ok(()));
        let ill = Prober::new(Arc::new(|| Err("pool a is gone".into())), LIMIT);
        assert_eq!(ill.ready().await, Err("pool a is gone".into()));
        let broken = Prober::new(Arc::new(|| panic!("a bug")), LIMIT);
        assert!(broken.ready().await.is_err());
    }

    #[tokio::test]
    async fn a_hanging_pool_is_not_ready_and_holds_one_thread() {
        static BEGUN: AtomicUsize = AtomicUsize::new(0);
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Mutex::new(ended);
        let prober = Prober::new(
            Arc::new(move || {
                BEGUN.fetch_add(1, Ordering::SeqCst);
                let _ = ended.lock().unwrap().recv();
                Ok(())
            }),
            Duration::from_millis(30),
        );
        for _ in 0..3 {
            assert!(prober.ready().await.unwrap_err().contains("not answered"));
        }
        assert_eq!(BEGUN.load(Ordering::SeqCst), 1);
        drop(end);
        let mut ready = prober.ready().await;
        for _ in 0..100 {
            if ready.is_ok() {
                break;
            }
            ready = prober.ready().await;
        }
        assert_eq!(ready, Ok(()));
    }
}
