//! Space that claims will take on nodes and that the capacity objects do not show yet.
//!
//! A claim counts against its node as soon as the leader or the scheduler selects the node. It
//! counts until its PersistentVolume exists *and* the node has updated its capacity object since.
//! It counts for at most [`SETTLED`] after its PersistentVolume exists: by then, every node has
//! updated its object. A claim that has no volume after [`HOPEFUL`] no longer counts: something is
//! wrong with it, and it must not keep other claims away. Nor does one without a volume that is larger
//! than all that the node has free: it can't be made, or the object shows it already.
//!
//! An update is newer if its resource version is higher, because API servers usually keep all kinds
//! in one store. If they do not, only the time counts. A node may then get a claim that does not
//! fit; it rejects the claim, and the leader selects another node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::placement::room::NodeRoom;
use crate::queue::Backoff;

/// After this time, a node has updated its capacity object for a new volume: it does every minute.
const SETTLED: Duration = Duration::from_secs(150);
/// How long a claim without a volume counts.
const HOPEFUL: Duration = Duration::from_secs(600);
/// How long a node that rejected a claim is skipped, unless its capacity object changes.
const PASSED_OVER: Duration = Duration::from_secs(60);
/// Minimum time to skip such a node, even if its capacity object changes.
const REFUSED: Backoff = Backoff {
    start: Duration::from_secs(1),
    max: Duration::from_secs(300),
};
/// How long a rejection counts for the time of the next one. Then nothing is left of it.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// A claim's reservation on a node.
#[derive(Clone, Debug)]
struct Reservation {
    bytes: i64,
    state: ReservationState,
}

#[derive(Clone, Copy, Debug)]
enum ReservationState {
    /// The claim was assigned at this time, and has no volume yet.
    Hoped(Instant),
    /// The PersistentVolume was seen at this time, with this resource version.
    Made(Instant, u64),
}

/// A node's rejection of a claim for lack of room.
#[derive(Clone, Debug)]
struct Rejection {
    at: Instant,
    times: u32,
    /// Resource version of the node's capacity object at that time.
    version: u64,
}

/// Sum of a node's reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::placement) struct Sum {
    pub(in crate::placement) bytes: i64,
    pub(super) claims: usize,
}

/// All reservations, keyed by the UIDs of claims.
#[derive(Debug, Default)]
pub(in crate::placement) struct Reservations {
    nodes: HashMap<Arc<str>, HashMap<Arc<str>, Reservation>>,
    places: HashMap<Arc<str>, Arc<str>>,
    refusals: HashMap<String, HashMap<String, Rejection>>,
    /// The node that got the last claim: without known room, nodes take turns.
    last: String,
}

impl Reservations {
    /// The node that has a reservation for a claim.
    pub(super) fn node(&self, uid: &str) -> Option<&str> {
        self.places.get(uid).map(AsRef::as_ref)
    }

    /// Reserves room for a claim on one node, and releases its reservation on any other.
    pub(super) fn assign(&mut self, uid: &str, node: &str, bytes: i64, now: Instant) {
        if self.node(uid) == Some(node) {
            if let Some(entry) = self.nodes.get_mut(node).and_then(|on| on.get_mut(uid)) {
                entry.bytes = bytes;
            }
            return;
        }
        self.release(uid);
        let known = self.nodes.get_key_value(node).map(|(node, _)| node.clone());
        let (uid, node): (Arc<str>, _) = (uid.into(), known.unwrap_or_else(|| node.into()));
        self.places.insert(uid.clone(), node.clone());
        let entry = Reservation {
            bytes,
            state: ReservationState::Hoped(now),
        };
        self.nodes.entry(node).or_default().insert(uid, entry);
    }

    /// Notes that a claim's PersistentVolume exists, with its resource version.
    pub(super) fn made(&mut self, uid: &str, version: u64, now: Instant) {
        self.refusals.remove(uid);
        let Some(node) = self.places.get(uid) else {
            return;
        };
        let entry = self.nodes.get_mut(node).and_then(|on| on.get_mut(uid));
        if let Some(entry) = entry.filter(|entry| matches!(entry.state, ReservationState::Hoped(_)))
        {
            entry.state = ReservationState::Made(now, version);
        }
    }

    /// Releases a claim's reservation.
    pub(super) fn release(&mut self, uid: &str) {
        let Some(node) = self.places.remove(uid) else {
            return;
        };
        if let Some(account) = self.nodes.get_mut(&node) {
            account.remove(uid);
            if account.is_empty() {
                self.nodes.remove(&node);
            }
        }
    }

    /// Releases a claim's reservation and drops its rejections.
    pub(super) fn forget(&mut self, uid: &str) {
        self.release(uid);
        self.refusals.remove(uid);
    }

    /// Notes that a node rejected a claim by removing the selected node. `version` is the resource
    /// version of the node's capacity object at that time.
    pub(super) fn refused(&mut self, uid: &str, version: u64, now: Instant) {
        let Some(node) = self.places.get(uid).cloned() else {
            return;
        };
        self.release(uid);
        let known = self.refusals.entry(uid.to_owned()).or_default();
        known.retain(|_, refusal| now.saturating_duration_since(refusal.at) < FORGOTTEN);
        let times = known.get(&*node).map_or(1, |refusal| refusal.times + 1);
        let refusal = Rejection {
            at: now,
            times,
            version,
        };
        known.insert(node.to_string(), refusal);
    }

    /// How much longer to skip a node for a claim. `version` is the present resource version of the
    /// node's capacity object.
    pub(super) fn passes_over(
        &self,
        uid: &str,
        node: &str,
        version: u64,
        now: Instant,
    ) -> Option<Duration> {
        let refusal = self.refusals.get(uid)?.get(node)?;
        let least = REFUSED.delay(refusal.times);
        let wait = if version == refusal.version {
            least.max(PASSED_OVER)
        } else {
            least
        };
        let left = wait.saturating_sub(now.saturating_duration_since(refusal.at));
        (!left.is_zero()).then_some(left)
    }

    /// The reservations on a node that `room` does not account for yet.
    pub(in crate::placement) fn sum(
        &self,
        node: &str,
        room: Option<&NodeRoom>,
        now: Instant,
    ) -> Sum {
        let mut sum = Sum::default();
        for entry in self.nodes.get(node).into_iter().flat_map(HashMap::values) {
            let counts = match entry.state {
                ReservationState::Hoped(since) => {
                    let fits = room.is_none_or(|room| entry.bytes <= room.available);
                    now.saturating_duration_since(since) < HOPEFUL && fits
                }
                ReservationState::Made(at, version) => {
                    now.saturating_duration_since(at) < SETTLED
                        && room.is_some_and(|room| room.version <= version)
                }
            };
            if counts {
                sum.bytes = sum.bytes.saturating_add(entry.bytes);
                sum.claims += 1;
            }
        }
        sum
    }

    /// True if a node has any reservation.
    pub(super) fn has_reservations(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    /// Drops reservations that no longer count, because their volumes have existed long enough.
    pub(super) fn settle(&mut self, now: Instant) {
        for account in self.nodes.values_mut() {
            account.retain(|uid, entry| {
                let keep = !matches!(entry.state, ReservationState::Made(at, _)
                    if now.saturating_duration_since(at) >= SETTLED);
                if !keep {
                    self.places.remove(uid);
                }
                keep
            });
        }
        self.nodes.retain(|_, account| !account.is_empty());
    }

    /// How many nodes' rejections of a claim are known.
    #[cfg(test)]
    pub(in crate::placement) fn refusals(&self, uid: &str) -> usize {
        self.refusals.get(uid).map_or(0, HashMap::len)
    }

    /// The node that got the last claim.
    pub(super) fn last(&self) -> &str {
        &self.last
    }

    /// Sets the node that got the last claim.
    pub(super) fn set_last(&mut self, node: &str) {
        node.clone_into(&mut self.last);
    }
}

#[cfg(test)]
mod tests;
