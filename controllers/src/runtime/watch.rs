//! What has been seen of a kind of objects: one watch of it, whose objects all loops share.
//!
//! A loop asks to be told of changes ([`Store::on_change`]), adds keys to its queue then, and reads
//! the objects here when it works on a key. Its own writes are put in at once ([`Store::apply_write`]),
//! so that it never decides by what it has itself outdated.
//!
//! A watch may show a part of the objects only ([`Selector`]). Then that an object is not here says
//! nothing, and that it was deleted may mean that it is out of sight: what depends on an object's
//! absence asks the server ([`Kube::find`](super::Kube::find)).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::ops::RangeFrom;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kube::ResourceExt;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tokio::time::Instant;

use super::kube::Resource;

mod accepted;
mod compress;
mod lru;
mod run;
mod select;

pub use compress::Encoding;
use compress::StoredObject;
pub use run::Range;
pub(crate) use run::{config, fraction};
pub use select::{Selector, Selectors, Width};

/// Namespace ("" for kinds of the whole cluster) and name, with [`BETWEEN`] between. Indexes share it.
type Key = Arc<str>;

/// Less than any character of names, so that objects are in the order of their namespaces.
const BETWEEN: char = '\0';

/// What happened to an object.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// It is there, new or changed.
    Applied {
        /// As it was seen before.
        old: Option<Arc<K>>,
        /// As it is.
        new: Arc<K>,
    },
    /// It is gone, or out of sight; this is how it was last seen.
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// The object, as last seen.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Change::Applied { new, .. } => new,
            Change::Deleted(object) => object,
        }
    }
}

type Handler<K> = Arc<dyn Fn(&Change<K>) + Send + Sync>;
type KeysOf<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// Who is told of changes. When it has left the watch, it is not any more.
#[derive(Clone, Debug, Default)]
pub struct Subscription(Arc<()>);

impl PartialEq for Subscription {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

struct IndexState<K> {
    /// Gone with the last [`Index`] that reads it.
    used: Weak<()>,
    keys_of: KeysOf<K>,
    /// Most have one object for each key, for which a set of its own would be large. Where there are
    /// many for one, they share its text, and so do indexes by the same.
    entries: BTreeSet<(Arc<str>, Key)>,
}

struct State<K> {
    objects: BTreeMap<Key, StoredObject<K>>,
    form: Encoding<K>,
    handlers: Vec<(Subscription, Handler<K>)>,
    indexes: Vec<IndexState<K>>,
    /// The highest `resourceVersion` the watch has told of.
    seen: u64,
    /// Keys told of since a list began; the others are gone when it ends.
    listing: Option<BTreeSet<Key>>,
    /// What is asked for.
    selector: Selector,
    /// All there are have been seen: what is not here is not there.
    whole: bool,
}

struct Inner<K> {
    state: Mutex<State<K>>,
    synced: watch::Sender<bool>,
    trouble: Mutex<Option<WatchError>>,
}

/// Why a watch does not get on.
#[derive(Clone, Debug)]
pub struct WatchError {
    /// Since when.
    pub since: Instant,
    /// What failed last.
    pub error: String,
}

/// The objects of a kind. Clones share them.
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

impl<K> Debug for Store<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Objects of a watch by something else than their names.
pub struct Index<K> {
    watch: Store<K>,
    used: Arc<()>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Index {
            watch: self.watch.clone(),
            used: self.used.clone(),
        }
    }
}

impl<K: Resource> Default for Store<K> {
    fn default() -> Self {
        Store::new()
    }
}

impl<K: Resource> Store<K> {
    /// One that has seen nothing, and does not until [`Store::run`]. Tests fill it by
    /// [`Store::apply_write`].
    pub fn new() -> Self {
        Store::in_form(Encoding::Open)
    }

    /// The same, of objects that are kept in this form.
    pub fn in_form(form: Encoding<K>) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            form,
            handlers: Vec::new(),
            indexes: Vec::new(),
            seen: 0,
            listing: None,
            selector: Selector::all(),
            whole: true,
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

    /// The same, by which this term is told of changes.
    pub fn of_term(&self, term: &Subscription) -> Self {
        Store {
            inner: self.inner.clone(),
            term: term.clone(),
        }
    }

    /// This term is told of nothing any more.
    pub fn leave(&self, term: &Subscription) {
        let is_of = |(of, _): &mut (Subscription, Handler<K>)| of == term;
        let left: Vec<_> = self.lock().handlers.extract_if(.., is_of).collect();
        // What handlers know may have parts in this watch: it is let go without the lock.
        drop(left);
    }

    /// Has every change told, from now on; what is there already is told at once. The handler
    /// runs in the watch's way and must only take note, as by adding a key to a queue.
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

    /// Objects by what `keys_of` says of them.
    pub fn index(&self, keys_of: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) -> Index<K> {
        let used = Arc::new(());
        let mut index = IndexState {
            used: Arc::downgrade(&used),
            keys_of: Box::new(keys_of),
            entries: BTreeSet::new(),
        };
        let mut state = self.lock();
        for (key, object) in &state.objects {
            index.add(key, &object.get(), &mut Vec::new());
        }
        state.indexes.retain(|index| index.used.strong_count() > 0);
        state.indexes.push(index);
        Index {
            watch: self.clone(),
            used,
        }
    }

    /// An object of the whole cluster.
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.get_in("", name)
    }

    /// An object in a namespace.
    pub fn get_in(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let kept = self.lock().kept(&named(namespace, name));
        kept.map(|kept| kept.get())
    }

    /// All of them, by namespace and name.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.each().collect()
    }

    /// The same, one by one: of those that are packed there is only one at a time.
    pub fn each(&self) -> impl Iterator<Item = Arc<K>> + use<K> {
        let kept: Vec<_> = self.lock().objects.values().cloned().collect();
        kept.into_iter().map(|kept| kept.get())
    }

    /// Those in a namespace.
    pub fn all_in(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.lock();
        let within = state.objects.range(named(namespace, "")..);
        let within = within.take_while(|(key, _)| {
            let rest = key.strip_prefix(namespace);
            rest.is_some_and(|rest| rest.starts_with(BETWEEN))
        });
        let kept: Vec<_> = within.map(|(_, kept)| kept.clone()).collect();
        drop(state);
        kept.iter().map(StoredObject::get).collect()
    }

    /// Whether what is not here is not there either, as far as the watch is: a part tells nothing of
    /// the others.
    pub fn is_whole(&self) -> bool {
        self.lock().whole
    }

    /// Asks for this from now on; what is known stays until that was listed.
    fn select(&self, selector: Selector) {
        let mut state = self.lock();
        // More is known only when all was listed.
        state.whole &= selector.is_all();
        state.selector = selector;
        state.listing = None;
    }

    /// As if this were asked for.
    #[cfg(test)]
    pub(crate) fn note_selected(&self, selector: Selector) {
        self.select(selector);
    }

    /// Whether everything there was at the start has been seen.
    pub fn is_synced(&self) -> bool {
        *self.inner.synced.borrow()
    }

    /// As if everything had been seen.
    #[cfg(test)]
    pub(crate) fn note_synced(&self) {
        self.inner.synced.send_replace(true);
    }

    /// Waits for that.
    pub async fn synced(&self) {
        let mut synced = self.inner.synced.subscribe();
        // The sender lives as long as this does.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Puts in what the server answered to a write, unless something newer has been seen.
    pub fn apply_write(&self, object: K) {
        let mut state = self.lock();
        let version = version(&object);
        let key = key(&object);
        if !state.selector.shows(&object) {
            // Nobody would tell what becomes of it.
            let known = state.objects.get(&key).map(StoredObject::version);
            if known.is_some_and(|known| version > known) {
                state.delete(&key);
            }
            return;
        }
        let newer = match state.objects.get(&key) {
            Some(known) => version > known.version(),
            // It may have been deleted since: then the watch is past it.
            None => version > state.seen || version == 0,
        };
        if newer {
            state.apply(key, object);
        }
    }

    /// Why it does not get on, if it does not.
    pub fn trouble(&self) -> Option<WatchError> {
        self.inner
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn note(&self, error: Option<String>) {
        let mut trouble = self
            .inner
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *trouble = error.map(|error| WatchError {
            since: trouble
                .as_ref()
                .map_or_else(Instant::now, |known| known.since),
            error,
        });
    }

    fn take(&self, event: Event<K>) {
        let mut state = self.lock();
        match event {
            Event::Init => state.listing = Some(BTreeSet::new()),
            Event::InitApply(object) | Event::Apply(object) => {
                state.seen = state.seen.max(version(&object));
                let key = key(&object);
                if let Some(listing) = &mut state.listing {
                    listing.insert(key.clone());
                }
                let known = state.objects.get(&key).map(StoredObject::version);
                // Our own write may have been put in before the watch tells of an older one, or of
                // that very one, which is no news.
                let told = version(&object);
                if known.is_none_or(|known| told > known || told == 0) {
                    state.apply(key, object);
                }
            }
            Event::Delete(object) => {
                state.seen = state.seen.max(version(&object));
                let key = key(&object);
                // An object with the same name may already be in the store: its writer adds it
                // before the watch reports this deletion.
                let known = state.kept(&key).map(|known| known.get().uid());
                if known.is_some_and(|uid| is_same(uid.as_deref(), object.uid().as_deref())) {
                    state.delete(&key);
                }
            }
            Event::InitDone => {
                let listed = state.listing.take().unwrap_or_default();
                let seen = state.seen;
                let gone: Vec<Key> = state
                    .objects
                    .iter()
                    .filter(|(key, object)| {
                        let late = object.version() > seen;
                        let ours = late && state.selector.shows(&*object.get());
                        !(ours || listed.contains(*key))
                    })
                    .map(|(key, _)| key.clone())
                    .collect();
                for key in gone {
                    state.delete(&key);
                }
                state.whole = state.selector.is_all();
                drop(state);
                self.inner.synced.send_replace(true);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource> Index<K> {
    /// The objects that have this key.
    pub fn get(&self, key: &str) -> Vec<Arc<K>> {
        let state = self.watch.lock();
        let entries = self.entries(&state).range(from(key));
        let of_key = entries.take_while(|(entry, _)| **entry == *key);
        let kept: Vec<_> = of_key.filter_map(|(_, key)| state.kept(key)).collect();
        drop(state);
        kept.iter().map(StoredObject::get).collect()
    }

    /// One of them.
    pub fn first(&self, key: &str) -> Option<Arc<K>> {
        let state = self.watch.lock();
        let (entry, named) = self.entries(&state).range(from(key)).next()?;
        let kept = state.kept(named).filter(|_| **entry == *key);
        drop(state);
        kept.map(|kept| kept.get())
    }

    /// The keys there are, in order.
    pub fn keys(&self) -> Vec<String> {
        let state = self.watch.lock();
        let mut keys: Vec<String> = Vec::new();
        for (key, _) in self.entries(&state) {
            if keys.last().is_none_or(|last| **last != **key) {
                keys.push(key.to_string());
            }
        }
        keys
    }

    fn entries<'s>(&self, state: &'s State<K>) -> &'s BTreeSet<(Arc<str>, Key)> {
        let mut indexes = state.indexes.iter();
        let own = indexes.find(|index| index.used.as_ptr() == Arc::as_ptr(&self.used));
        // It is kept as long as this is.
        &own.expect("an index in use").entries
    }
}

impl<K: Resource> IndexState<K> {
    /// Puts an object in. `texts` are those of its keys that other indexes have already.
    fn add(&mut self, key: &Key, object: &K, texts: &mut Vec<Arc<str>>) {
        for entry in (self.keys_of)(object) {
            let known = texts.iter().find(|text| ***text == *entry).cloned();
            let new = from(known.unwrap_or_else(|| entry.into()));
            let mut same = self.entries.range(new.clone());
            let own = same.next().filter(|(own, _)| *own == new.start.0);
            let text = own.map_or(new.start.0, |(own, _)| own.clone());
            texts.push(text.clone());
            self.entries.insert((text, key.clone()));
        }
    }

    fn remove(&mut self, key: &Key, object: &K) {
        for entry in (self.keys_of)(object) {
            self.entries.remove(&(entry.into(), key.clone()));
        }
    }
}

impl<K: Resource> State<K> {
    fn kept(&self, key: &Key) -> Option<StoredObject<K>> {
        let recent = self.form.recent(key).map(StoredObject::Open);
        recent.or_else(|| self.objects.get(key).cloned())
    }

    fn apply(&mut self, key: Key, mut object: K) {
        // Nobody reads them, and they are often half of an object.
        object.meta_mut().managed_fields = None;
        let new = Arc::new(object);
        let mut old = self.kept(&key).map(|old| old.get());
        if let Some(gone) = &old
            && !is_same(gone.uid().as_deref(), new.uid().as_deref())
        {
            // The watch missed the deletion of the old object. Forget everything stored about it.
            self.delete(&key);
            old = None;
        }
        let kept = self.form.keep(&key, &new);
        self.objects.insert(key.clone(), kept);
        let mut texts = Vec::new();
        for index in &mut self.indexes {
            if let Some(old) = &old {
                index.remove(&key, old);
            }
            index.add(&key, &new, &mut texts);
        }
        self.tell(&Change::Applied { old, new });
    }

    fn delete(&mut self, key: &Key) {
        let Some(old) = self.kept(key).map(|old| old.get()) else {
            return;
        };
        self.objects.remove(key);
        self.form.forget(key);
        for index in &mut self.indexes {
            index.remove(key, &old);
        }
        self.tell(&Change::Deleted(old));
    }

    fn tell(&self, change: &Change<K>) {
        for (_, handler) in &self.handlers {
            handler(change);
        }
    }
}

/// Whether two objects of one name have the same UID. A missing UID matches any.
fn is_same(one: Option<&str>, other: Option<&str>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

/// An index's entries from this key on.
fn from(key: impl Into<Arc<str>>) -> RangeFrom<(Arc<str>, Key)> {
    (key.into(), Key::default())..
}

fn key<K: Resource>(object: &K) -> Key {
    named(&object.namespace().unwrap_or_default(), &object.name_any())
}

fn named(namespace: &str, name: &str) -> Key {
    format!("{namespace}{BETWEEN}{name}").into()
}

/// Versions of one kind are decimal numbers that grow; the API promises so.
fn version<K: Resource>(object: &K) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
