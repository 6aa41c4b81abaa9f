//! What is remembered of claims and volumes between attempts. All of it can be lost: a restart
//! finds the same volume by its name.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use tokio::time::Instant;

use super::decide::Plan;
use crate::api::topology::Seen;

/// How long a call that can't succeed is not made again.
pub(crate) const SLOW: Duration = Duration::from_secs(300);

/// How the last attempt for a claim ended.
#[derive(Clone, Debug)]
pub(crate) enum Left {
    /// The driver may still be making a volume. CreateVolume is repeated until the driver gives a
    /// final answer, even if the claim is gone. Holds the plan of the last call.
    Background(Arc<Plan>),
    /// It can't be made with this class (by UID), not before this instant.
    Slow {
        /// The class's UID.
        class: Option<String>,
        /// When to try again.
        until: Instant,
    },
}

/// A volume that was made and has no object yet.
#[derive(Debug)]
pub(crate) struct Unsaved {
    /// What it was made for.
    pub(crate) plan: Arc<Plan>,
    /// The object to be.
    pub(crate) object: PersistentVolume,
    /// When making it began.
    pub(crate) since: Instant,
}

#[derive(Default)]
struct Inner {
    left: HashMap<String, Left>,
    unsaved: HashMap<String, Arc<Unsaved>>,
    doubted: HashSet<String>,
    places: HashMap<String, Seen>,
}

/// What is remembered.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Inner>);

impl Kept {
    /// How the last attempt for this claim (by UID) ended.
    pub(crate) fn left(&self, uid: &str) -> Option<Left> {
        self.lock().left.get(uid).cloned()
    }

    /// Notes how an attempt ended.
    pub(crate) fn leave(&self, uid: &str, left: Left) {
        let mut inner = self.lock();
        // Nothing is being made, and by then the nodes may be others.
        if matches!(left, Left::Slow { .. }) {
            inner.places.remove(uid);
        }
        inner.left.insert(uid.to_owned(), left);
    }

    /// Forgets the attempts for a claim.
    pub(crate) fn forget(&self, uid: &str) {
        let mut inner = self.lock();
        inner.left.remove(uid);
        inner.doubted.remove(uid);
        inner.places.remove(uid);
    }

    /// What of the cluster the requirement of a claim (by UID) was made from, if there was one.
    pub(crate) fn places(&self, uid: &str) -> Option<Seen> {
        self.lock().places.get(uid).cloned()
    }

    /// Notes it, until it is known what came of the claim.
    pub(crate) fn keep_places(&self, uid: &str, seen: Seen) {
        self.lock().places.insert(uid.to_owned(), seen);
    }

    /// How long a claim is to wait yet, with a class of this UID.
    pub(crate) fn waits(&self, uid: &str, class_uid: Option<&String>) -> Option<Duration> {
        match self.lock().left.get(uid)? {
            Left::Slow { class, until } if class.as_ref() == class_uid => {
                let left = until.saturating_duration_since(Instant::now());
                (!left.is_zero()).then_some(left)
            }
            _ => None,
        }
    }

    /// Notes claims an earlier process may have made volumes for: they are read again before
    /// their volumes get objects.
    pub(crate) fn doubt(&self, uids: impl IntoIterator<Item = String>) {
        self.lock().doubted.extend(uids);
    }

    /// Whether an earlier process may have made a volume for this claim.
    pub(crate) fn is_doubted(&self, uid: &str) -> bool {
        self.lock().doubted.contains(uid)
    }

    /// The volume of this name, if it has no object yet.
    pub(crate) fn unsaved(&self, name: &str) -> Option<Arc<Unsaved>> {
        self.lock().unsaved.get(name).cloned()
    }

    /// Whether the volume made for a claim has no object yet.
    pub(crate) fn has_unsaved(&self, uid: &str) -> bool {
        let is_for = |one: &Arc<Unsaved>| one.plan.uid() == uid;
        self.lock().unsaved.values().any(is_for)
    }

    /// Notes a volume without an object.
    pub(crate) fn keep_unsaved(&self, unsaved: Arc<Unsaved>) {
        let name = unsaved.plan.draft.name.clone();
        self.lock().unsaved.insert(name, unsaved);
    }

    /// It has one now, or is gone.
    pub(crate) fn saved(&self, name: &str) {
        self.lock().unsaved.remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
