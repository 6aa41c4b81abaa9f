//! Leases: work that exactly one process does for the whole cluster.
//!
//! - Every write carries the `resourceVersion` that the decision was based on. Of two concurrent
//!   candidates, only one gets the lease.
//! - Another process's lease expires when it is *seen* unchanged for its duration, measured by this
//!   machine's monotonic clock. The clocks of other machines are not trusted.
//! - The holder stops leading when it cannot renew the lease within the renew deadline, which is
//!   shorter than the wait of the others. [`Leadership::leads`] checks the clock itself, so a
//!   process that was paused finds its leadership expired before it writes.
//! - The holder releases the lease when it stops, so its successor does not wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

mod hold;
mod observe;
mod takeover;

pub use hold::hold;
pub use hostloop_api_objects::lease_name::lease_name;
pub use observe::observe;
pub use takeover::{LeaseStep, ObservedLease, step};

/// The lease to acquire, and the identity that acquires it.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    pub namespace: String,
    /// The name of the Lease; see [`lease_name`].
    pub name: String,
    /// The holder identity, unique for each process.
    pub identity: String,
    /// How long other processes wait after the holder's last renewal.
    pub duration: Duration,
    /// How long the holder keeps leading after its last renewal.
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    pub labels: BTreeMap<String, String>,
}

/// When this process's leadership ends; `None` if it does not lead.
type Until = Option<Instant>;

/// Whether any process leads, as observed by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderObservation {
    /// True if a process leads, perhaps this one.
    pub led: bool,
    /// When `led` last changed.
    pub since: Instant,
}

/// Records whether a leader exists now; a change sets the time.
fn see(seen: &watch::Sender<LeaderObservation>, led: bool) {
    seen.send_if_modified(|sight| {
        let changed = sight.led != led;
        if changed {
            *sight = LeaderObservation {
                led,
                since: Instant::now(),
            };
        }
        changed
    });
}

/// Whether this process leads. Clones share the state.
#[derive(Clone, Debug)]
pub struct Leadership {
    until: watch::Receiver<Until>,
    sight: watch::Receiver<LeaderObservation>,
    /// The sender of a leadership without election.
    always: Option<Arc<watch::Sender<Until>>>,
}

impl Leadership {
    /// Leadership without election, for a process that its operator runs as the only one.
    pub fn always() -> Self {
        // The deadline is 30 years away.
        let far = Instant::now() + Duration::from_secs(30 * 365 * 24 * 3600);
        let (sender, mut leadership) = Leadership::elected();
        sender.send_replace(Some(far));
        leadership.always = Some(Arc::new(sender));
        leadership
    }

    /// Creates a leadership; the sender sets the time until which it leads.
    pub fn elected() -> (watch::Sender<Until>, Self) {
        let (sender, _, leadership) = Leadership::seen();
        (sender, leadership)
    }

    /// Also returns a sender that reports whether any process leads.
    pub fn seen() -> (watch::Sender<Until>, watch::Sender<LeaderObservation>, Self) {
        let (sender, until) = watch::channel(None);
        let (seeing, sight) = watch::channel(LeaderObservation {
            led: false,
            since: Instant::now(),
        });
        let leadership = Leadership {
            until,
            sight,
            always: None,
        };
        (sender, seeing, leadership)
    }

    /// True if a lease decides the leadership.
    pub fn is_elected(&self) -> bool {
        self.always.is_none()
    }

    /// Whether any process leads, as observed by this process. An unreachable API server does not
    /// change the observation.
    pub fn sight(&self) -> LeaderObservation {
        *self.sight.borrow()
    }

    /// Waits until the observation changes after the last call.
    pub async fn sight_changed(&mut self) {
        if self.sight.changed().await.is_err() {
            // The observer has ended.
            std::future::pending::<()>().await;
        }
    }

    /// True if this process leads now. Check it right before each write that only the leader may
    /// do.
    pub fn leads(&self) -> bool {
        leads(*self.until.borrow())
    }

    /// True if `grace` has passed since the leadership expired without any update. The task that
    /// renews the lease is then stuck.
    pub fn overdue(&self, grace: Duration) -> bool {
        self.until
            .borrow()
            .is_some_and(|until| until + grace < Instant::now())
    }

    /// Waits until this process leads.
    pub async fn gained(&mut self) {
        if self.until.wait_for(|until| leads(*until)).await.is_err() {
            // The task that holds the lease has ended, so this process never leads again.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until this process no longer leads, at the latest until its leadership expires.
    pub async fn lost(&mut self) {
        loop {
            let until = *self.until.borrow_and_update();
            let Some(until) = until.filter(|until| *until > Instant::now()) else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                changed = self.until.changed() => if changed.is_err() {
                    return tokio::time::sleep_until(until).await;
                },
            }
        }
    }
}

/// True for a client error that a retry cannot fix, such as a missing permission.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if (400..500).contains(&status.code) && status.code != 429)
}

fn leads(until: Until) -> bool {
    until.is_some_and(|until| Instant::now() < until)
}

#[cfg(test)]
mod tests;
