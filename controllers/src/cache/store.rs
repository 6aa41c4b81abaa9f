//! A store of all objects of one kind, filled by one watch and shared by all controllers.
//!
//! A controller registers a handler for changes ([`Store::on_change`]) that adds keys to its queue.
//! It reads the objects from the store when it works on a key. It also puts its own writes into the
//! store at once ([`Store::apply_write`]), so it never decides from a state that it has already
//! changed.
//!
//! A watch may select only a part of the objects ([`Selector`]). A missing object may then still
//! exist, and a reported deletion may only mean that the object left the selection. Decisions that
//! depend on an object's absence ask the API server ([`Kube::find`](crate::client::Kube::find)).
//! The same holds for an object that is too large to be kept: the store has none of it but the name.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Bound;
use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::watcher::Event;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::kube::{Resource, is_left_out};

mod accepted;
mod budget;
mod compress;
mod going_back;
mod holder;
mod index;
mod left_out;
mod recent;
mod run;
mod select;
mod state;

use budget::{Budget, Limits};
pub use compress::Encoding;
use compress::StoredObject;
pub use index::Index;
use left_out::LeftOut;
pub(crate) use run::fraction;
pub use run::{Range, Reports};
pub(crate) use select::config;
pub use select::{Selector, Selectors, WatchScope};
use state::State;

/// Namespace (empty for cluster-scoped kinds), [`BETWEEN`] and name. Indexes share the allocation.
type Key = Arc<str>;

/// Sorts before every character of a name, so objects are ordered by namespace.
const BETWEEN: char = '\0';

/// How many objects an iterator reads from the store at a time. The first of many thousands then
/// costs no more than the first of a few.
const STEP: usize = 64;

/// A change of one object.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// The object is new or changed.
    Applied {
        /// The object as last seen before the change.
        old: Option<Arc<K>>,
        /// The object after the change.
        new: Arc<K>,
    },
    /// The object was deleted or left the selection; this is its last seen state.
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// The object as last seen.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Change::Applied { new, .. } => new,
            Change::Deleted(object) => object,
        }
    }

    /// The object before and after it was changed. `None` if it is new or gone.
    pub fn both(&self) -> Option<(&Arc<K>, &Arc<K>)> {
        match self {
            Change::Applied { old, new } => Some((old.as_ref()?, new)),
            Change::Deleted(_) => None,
        }
    }
}

impl<K: kube::Resource> Change<K> {
    /// The name of an object that exists; `None` if it was deleted.
    pub fn name_applied(&self) -> Option<String> {
        match self {
            Change::Applied { new, .. } => Some(new.name_any()),
            Change::Deleted(_) => None,
        }
    }
}

type Handler<K> = Arc<dyn Fn(&Change<K>) + Send + Sync>;

/// Identifies a subscriber. [`Store::leave`] removes its handlers.
#[derive(Clone, Debug, Default)]
pub struct Subscription(Arc<()>);

impl PartialEq for Subscription {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

struct Inner<K> {
    state: Mutex<State<K>>,
    synced: watch::Sender<bool>,
    trouble: Mutex<Option<WatchError>>,
}

/// Why a watch makes no progress.
#[derive(Clone, Debug)]
pub struct WatchError {
    /// When the first of the consecutive failures occurred.
    pub since: Instant,
    /// The last error.
    pub error: String,
}

/// All known objects of one kind. Clones share them.
pub struct Store<K> {
    inner: Arc<Inner<K>>,
    term: Subscription,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Store {
            inner: self.inner.clone(),
            term: self.term.clone(),
        }
    }
}

impl<K: Resource> Default for Store<K> {
    fn default() -> Self {
        Store::new()
    }
}

impl<K: Resource> Store<K> {
    /// Creates an empty store that stays empty until [`Store::run`]. Tests fill it with
    /// [`Store::apply_write`].
    pub fn new() -> Self {
        Store::in_form(Encoding::Open)
    }

    /// Creates an empty store that keeps its objects in this encoding.
    pub fn in_form(form: Encoding<K>) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            form,
            handlers: Vec::new(),
            indexes: Vec::new(),
            seen: 0,
            listing: None,
            is_reverted: false,
            selector: Selector::all(),
            whole: true,
            left_out: LeftOut::new(),
            budget: Budget::new(Limits::of::<K>()),
            pushed_out: Vec::new(),
        };
        let inner = Inner {
            state: Mutex::new(state),
            synced: watch::Sender::new(false),
            trouble: Mutex::new(None),
        };
        Store {
            inner: Arc::new(inner),
            term: Subscription::default(),
        }
    }

    /// The same store; handlers registered through it belong to this subscription.
    pub fn of_term(&self, term: &Subscription) -> Self {
        Store {
            inner: self.inner.clone(),
            term: term.clone(),
        }
    }

    /// Removes all handlers of this subscription.
    pub fn leave(&self, term: &Subscription) {
        let left: Vec<_> = self
            .lock()
            .handlers
            .extract_if(.., |(of, _): &mut (Subscription, Handler<K>)| of == term)
            .collect();
        // The handlers may own clones of this store, so they are dropped after the lock.
        drop(left);
    }

    /// Calls `handler` for every object already known and for every later change. The handler runs
    /// under the store's lock, so it must only take note, for example by adding a key to a queue.
    pub fn on_change(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let mut state = self.lock();
        for object in state.objects.values() {
            handler(&Change::Applied {
                old: None,
                new: object.get(),
            });
        }
        state.handlers.push((self.term.clone(), Arc::new(handler)));
    }

    /// Returns a cluster-scoped object.
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.get_in("", name)
    }

    /// Returns an object in a namespace.
    pub fn get_in(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let kept = self.lock().objects.get(&named(namespace, name)).cloned();
        kept.map(|kept| kept.get())
    }

    /// Returns all objects, ordered by namespace and name.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.each().collect()
    }

    /// Iterates over all objects in that order, [in steps](in_steps).
    pub fn each(&self) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.each_from(Bound::Unbounded, |_| true)
    }

    /// Returns all objects in a namespace.
    pub fn all_in(&self, namespace: &str) -> Vec<Arc<K>> {
        self.each_in(namespace).collect()
    }

    /// Iterates over all objects in a namespace, [in steps](in_steps).
    pub fn each_in(&self, namespace: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        let first = named(namespace, "");
        let within = first.clone();
        self.each_from(Bound::Included(first), move |key| key.starts_with(&*within))
    }

    /// Iterates from this key on, as long as the keys are `within`.
    fn each_from<W: Fn(&Key) -> bool>(
        &self,
        first: Bound<Key>,
        within: W,
    ) -> impl Iterator<Item = Arc<K>> + use<K, W> {
        let store = self.clone();
        in_steps(move |after| {
            let start = after.map_or(first.clone(), Bound::Excluded);
            let state = store.lock();
            let objects = state.objects.range((start, Bound::Unbounded));
            let objects = objects.take_while(|(key, _)| within(key)).take(STEP);
            objects
                .map(|(key, kept)| (key.clone(), kept.clone()))
                .collect()
        })
    }

    /// Counts the objects; `None` once no one uses the store any more.
    pub(crate) fn counter(&self) -> impl Fn() -> Option<usize> + Send + Sync + use<K> {
        let inner = Arc::downgrade(&self.inner);
        move || {
            let inner = inner.upgrade()?;
            let count = inner.state.lock().objects.len();
            Some(count)
        }
    }

    /// True if the store lists all objects of the kind, so a missing object does not exist.
    pub fn is_whole(&self) -> bool {
        let state = self.lock();
        state.whole && state.left_out.is_empty()
    }

    /// True if an object that the store does not have exists, or may exist, but is too large to be
    /// kept.
    pub(crate) fn leaves_out(&self, namespace: &str, name: &str) -> bool {
        let (state, key) = (self.lock(), named(namespace, name));
        !state.objects.contains_key(&key) && state.left_out.may_contain(&key)
    }

    /// The namespaces and names of the objects that are too large to be kept, as far as there is
    /// room for the names.
    pub(crate) fn left_out(&self) -> Vec<(String, String)> {
        let state = self.lock();
        let names = state.left_out.names();
        names
            .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
            .collect()
    }

    /// True if there are objects in a namespace, or may be, that are too large to be kept.
    pub(crate) fn leaves_out_any(&self, namespace: &str) -> bool {
        self.lock().left_out.has_any_in(namespace)
    }

    /// The first known name of such an object.
    pub(crate) fn first_left_out(&self, namespace: &str) -> Option<String> {
        let state = self.lock();
        let mut names = state.left_out.names_in(namespace);
        names.next().map(ToOwned::to_owned)
    }

    /// Pretends that the watch reports an object that is too large.
    #[cfg(test)]
    pub(crate) fn note_left_out(&self, namespace: &str, name: &str) {
        let (mut state, key) = (self.lock(), named(namespace, name));
        state.leave_out(&key, namespace, None);
        state.left_out.announce(&key);
    }

    /// Pretends that objects of any namespace are left out, and that their names are not known.
    #[cfg(test)]
    pub(crate) fn note_left_out_anywhere(&self) {
        self.lock().left_out.give_all_up();
    }

    /// The objects that others have pushed out since the last call.
    fn pushed_out(&self) -> Vec<Arc<K>> {
        std::mem::take(&mut self.lock().pushed_out)
    }

    /// True if an object that is left out because of others, or its name, has room by now.
    fn has_room(&self) -> bool {
        let state = self.lock();
        let mut smallest = state.left_out.smallest();
        state.left_out.has_room_for_names()
            || smallest.any(|(holder, key, size)| state.budget.is_worth_a_list(key, holder, size))
    }

    /// Switches to this selector. Known objects stay until the next list is complete.
    fn select(&self, selector: Selector) {
        let mut state = self.lock();
        // A wider selection is complete only after its first list.
        state.whole &= selector.is_all();
        state.selector = selector;
        state.listing = None;
    }

    /// Pretends that the watch uses this selector.
    #[cfg(test)]
    pub(crate) fn note_selected(&self, selector: Selector) {
        self.select(selector);
    }

    /// True once the first list is complete.
    pub fn is_synced(&self) -> bool {
        *self.inner.synced.borrow()
    }

    /// Pretends that the first list is complete.
    #[cfg(test)]
    pub(crate) fn note_synced(&self) {
        self.inner.synced.send_replace(true);
    }

    /// Pretends that the watch reports an object's deletion.
    #[cfg(test)]
    pub(crate) fn note_deleted(&self, namespace: &str, name: &str) {
        self.lock().delete(&named(namespace, name));
    }

    /// Waits until the first list is complete.
    pub async fn synced(&self) {
        let mut synced = self.inner.synced.subscribe();
        // The sender lives as long as this store.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Stores the API server's answer to a write, unless the watch has reported a newer version.
    pub fn apply_write(&self, object: K) {
        let mut state = self.lock();
        let version = version(&object);
        let key = key(&object);
        if !state.selector.shows(&object) {
            // The watch does not report changes of objects outside its selection.
            let known = state.objects.get(&key).map(StoredObject::version);
            if known.is_some_and(|known| version > known) {
                state.delete(&key);
            }
            return;
        }
        let newer = match state.objects.get(&key) {
            Some(known) => version > known.version() || state.is_reverted,
            // The object may already be deleted: the watch has then reported a later version.
            None => version > state.seen || version == 0,
        };
        if newer {
            state.note_written(&key);
            state.apply(key, object);
        }
    }

    /// Notes that the API server went back to a backup: a list follows, and replaces all objects.
    fn went_back(&self) {
        tracing::warn!(
            kind = %K::kind(&()),
            "the API server went back to an older version; all objects are listed again"
        );
        let mut state = self.lock();
        (state.seen, state.is_reverted) = (0, true);
        state.left_out.announce_again();
    }

    /// Returns the watch's current error, if any.
    pub fn trouble(&self) -> Option<WatchError> {
        self.inner.trouble.lock().clone()
    }

    fn note(&self, error: Option<String>) {
        let mut trouble = self.inner.trouble.lock();
        *trouble = error.map(|error| WatchError {
            since: trouble
                .as_ref()
                .map_or_else(Instant::now, |known| known.since),
            error,
        });
    }

    /// Applies an event of the watch. Returns its object if that is too large to be kept, and the
    /// watch did not report this before.
    fn take(&self, event: Event<K>) -> Option<K> {
        let mut state = self.lock();
        match event {
            Event::Init => state.begin_list(),
            Event::InitApply(object) | Event::Apply(object) => {
                state.seen = state.seen.max(version(&object));
                let key = key(&object);
                let is_listed = state.note_listed(&key);
                if is_left_out(&object) {
                    let namespace = object.meta().namespace.as_deref();
                    state.leave_out(&key, namespace.unwrap_or_default(), None);
                    return state.left_out.announce(&key).then_some(object);
                }
                let known = state.objects.get(&key).map(StoredObject::version);
                // The controller's own write may already be in the store when the watch reports the
                // same version or an older one.
                let reported = version(&object);
                let is_newer = known.is_none_or(|known| reported > known || reported == 0);
                // Otherwise a list shows the present, even if it has a lower version: a server that
                // was restored from a backup has older states of its objects.
                let is_other = state.is_reverted || known != Some(reported);
                if is_newer || is_listed && is_other {
                    let object = state.apply(key.clone(), object)?;
                    return state.left_out.announce(&key).then_some(object);
                }
            }
            Event::Delete(object) => {
                state.seen = state.seen.max(version(&object));
                let key = key(&object);
                state.left_out.remove(&key);
                // An object with the same name may already be in the store: its writer adds it
                // before the watch reports this deletion.
                let known = state.objects.get(&key).map(|known| known.get().uid());
                if known.is_some_and(|uid| is_same(uid.as_deref(), object.uid().as_deref())) {
                    state.delete(&key);
                }
            }
            Event::InitDone => {
                state.end_list();
                drop(state);
                self.inner.synced.send_replace(true);
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.inner.state.lock()
    }
}

/// Whether two objects of one name have the same UID. A missing UID matches any.
fn is_same(one: Option<&str>, other: Option<&str>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

fn key<K: Resource>(object: &K) -> Key {
    named(&object.namespace().unwrap_or_default(), &object.name_any())
}

fn named(namespace: &str, name: &str) -> Key {
    format!("{namespace}{BETWEEN}{name}").into()
}

/// Iterates over objects that `read` takes from the store, each step of up to [`STEP`] of them after
/// the last key of the step before. Objects that come or go between two steps may be missed or seen.
/// Packed objects are unpacked one at a time.
fn in_steps<K: Resource>(
    mut read: impl FnMut(Option<Key>) -> Vec<(Key, StoredObject<K>)>,
) -> impl Iterator<Item = Arc<K>> {
    let mut step = read(None);
    let (mut is_last, mut next) = (step.len() < STEP, 0);
    iter::from_fn(move || {
        if next == step.len() && !is_last {
            step = read(step.pop().map(|(key, _)| key));
            (is_last, next) = (step.len() < STEP, 0);
        }
        let (_, stored) = step.get(next)?;
        next += 1;
        Some(stored.get())
    })
}

/// Parses the `resourceVersion`: the API guarantees increasing decimal numbers within a kind.
pub(crate) fn version<K: Resource>(object: &K) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
