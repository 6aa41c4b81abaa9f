//! Leases: work that exactly one process does for the whole cluster.
//!
//! - Every write carries the `resourceVersion` it was decided by, so that of two who want a lease
//!   one gets it.
//! - Whether somebody else's lease has run out is judged by how long it has been *seen* unchanged,
//!   on this machine's monotonic clock: other machines' clocks say nothing.
//! - Who holds it stops leading when it could not be renewed for the renew deadline, which is less
//!   than the others wait; and [`Leadership::leads`] looks at the clock itself. So a process that
//!   was paused and goes on finds that it leads no longer before it writes anything.
//! - It is given up at the end, so that the next need not wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

mod hold;
mod observe;
mod terms;

pub use hold::hold;
pub use observe::observe;
pub use terms::{ObservedLease, Step, step};

/// What lease is wanted, and by whom.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name; see [`lease_name`].
    pub name: String,
    /// Who wants it: different for every process.
    pub identity: String,
    /// How long others wait for one that renews it no longer.
    pub duration: Duration,
    /// How long who holds it goes on without having renewed it.
    pub renew_deadline: Duration,
    /// The wait between two tries.
    pub retry_period: Duration,
    /// Labels the Lease gets.
    pub labels: BTreeMap<String, String>,
}

/// A name or identity as upstream makes it fit: what is neither letter, digit nor `-` becomes
/// `-`, and a trailing `-` gets an `X`.
pub fn lease_name(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let mut name: String = name.chars().map(keep).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}

/// Until when this process leads; `None` if it does not.
type Until = Option<Instant>;

/// Whether any process leads, as this one sees it when it looks at the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderObservation {
    /// Somebody does, perhaps this process.
    pub led: bool,
    /// Since when that is so.
    pub since: Instant,
}

/// Records whether a leader exists.
trait See {
    /// Records whether a leader exists now; a change sets the time.
    fn see(&self, led: bool);
}

impl See for watch::Sender<LeaderObservation> {
    fn see(&self, led: bool) {
        self.send_if_modified(|sight| {
            let changed = sight.led != led;
            if changed {
                let since = Instant::now();
                *sight = LeaderObservation { led, since };
            }
            changed
        });
    }
}

/// Whether this process does it now. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    until: watch::Receiver<Until>,
    sight: watch::Receiver<LeaderObservation>,
    /// Kept by one that nobody tells anything.
    always: Option<Arc<watch::Sender<Until>>>,
}

impl Leadership {
    /// For a process that is the only one, as told by its user.
    pub fn always() -> Self {
        // As far as clocks go: 30 years.
        let far = Instant::now() + Duration::from_secs(30 * 365 * 24 * 3600);
        let (sender, mut leadership) = Leadership::told();
        sender.send_replace(Some(far));
        leadership.always = Some(Arc::new(sender));
        leadership
    }

    /// Told by the sender until when it leads.
    pub fn told() -> (watch::Sender<Until>, Self) {
        let (sender, _, leadership) = Leadership::seen();
        (sender, leadership)
    }

    /// The same, and told by the second sender whether anybody leads.
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

    /// Whether there is a lease that decides it.
    pub fn is_elected(&self) -> bool {
        self.always.is_none()
    }

    /// Whether anybody leads, as far as this process sees. That the server does not answer says
    /// nothing about that.
    pub fn sight(&self) -> LeaderObservation {
        *self.sight.borrow()
    }

    /// Waits until that is otherwise than when it was last waited for.
    pub async fn sight_changed(&mut self) {
        if self.sight.changed().await.is_err() {
            // Nobody looks any more.
            std::future::pending::<()>().await;
        }
    }

    /// Whether it leads now. To be asked right before each write that only the leader may do.
    pub fn leads(&self) -> bool {
        leads(*self.until.borrow())
    }

    /// Whether it was told nothing for so long after the time it leads was over: then who renews
    /// the lease is stuck.
    pub fn overdue(&self, grace: Duration) -> bool {
        self.until
            .borrow()
            .is_some_and(|until| until + grace < Instant::now())
    }

    /// Waits until it leads.
    pub async fn gained(&mut self) {
        if self.until.wait_for(|until| leads(*until)).await.is_err() {
            // Who holds leases has ended; it never will.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until it leads no longer, at the latest when the time it was told is over.
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
