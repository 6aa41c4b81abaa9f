//! What a store keeps, and how a change reaches its indexes and handlers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;

use super::budget::{self, Budget, ObjectAdmission};
use super::compress::{Dictionary, Encoding, StoredObject};
use super::holder::holder_of;
use super::index::IndexState;
use super::left_out::LeftOut;
use super::select::Selector;
use super::{BETWEEN, Change, Handler, Key, Subscription, is_same};
use crate::client::kube::{Resource, too_large};

/// How many objects that are too large are logged at a time: a user can make any number of them.
const LOGGED: usize = 100;
/// How many objects on each side are asked for their dictionary. Of those that changed last, none
/// has one.
const NEAR: usize = 4;

pub(super) struct State<K> {
    pub(super) objects: BTreeMap<Key, StoredObject<K>>,
    pub(super) form: Encoding<K>,
    pub(super) handlers: Vec<(Subscription, Handler<K>)>,
    pub(super) indexes: Vec<IndexState<K>>,
    /// The highest `resourceVersion` that the watch has reported.
    pub(super) seen: u64,
    /// The list that has begun. Its end removes all that it does not have, except newer own writes.
    pub(super) listing: Option<Listing>,
    /// True if the API server went back to a backup, until everything is listed again. Versions
    /// from before prove nothing.
    pub(super) is_reverted: bool,
    /// The selector of the current watch.
    pub(super) selector: Selector,
    /// True once a list of all objects is complete: a missing object does not exist.
    pub(super) whole: bool,
    /// The objects that are too large to be kept, or too many.
    pub(super) left_out: LeftOut,
    pub(super) budget: Budget,
    /// What was kept until others needed the room. Their users are to learn of it.
    pub(super) pushed_out: Vec<Arc<K>>,
}

/// What happened since a list began.
#[derive(Default)]
pub(super) struct Listing {
    /// The keys of the kept objects that it has not reported yet.
    pub(super) missing: BTreeSet<Key>,
    /// The keys of own writes. The list may show an older state of them, but of no other object.
    pub(super) written: BTreeSet<Key>,
}

impl<K: Resource> State<K> {
    /// Notes that a list of all objects begins.
    pub(super) fn begin_list(&mut self) {
        self.left_out.begin_list();
        self.listing = Some(Listing {
            missing: self.objects.keys().cloned().collect(),
            written: BTreeSet::new(),
        });
    }

    /// Notes that the list has reported an object. True if it shows the present state: an own write
    /// since the list began may be newer.
    pub(super) fn note_listed(&mut self, key: &Key) -> bool {
        self.listing.as_mut().is_some_and(|listing| {
            listing.missing.remove(key);
            !listing.written.contains(key)
        })
    }

    /// Notes an own write.
    pub(super) fn note_written(&mut self, key: &Key) {
        if let Some(listing) = &mut self.listing {
            listing.written.insert(key.clone());
            if !self.objects.contains_key(key) && !self.left_out.is_listed(key) {
                listing.missing.insert(key.clone());
            }
        }
    }

    /// Removes what the complete list does not have, except newer own writes.
    pub(super) fn end_list(&mut self) {
        let listing = self.listing.take().unwrap_or_default();
        for key in &listing.missing {
            let Some(object) = self.objects.get(key) else {
                continue;
            };
            let is_late = object.version() > self.seen && listing.written.contains(key);
            if !(is_late && self.selector.shows(&*object.get())) {
                self.delete(key);
            }
        }
        self.left_out.end_list();
        self.is_reverted = false;
        self.whole = self.selector.is_all();
    }

    /// Forgets the object but not that it exists, and lets its users learn of it. `size` is what it
    /// counts, if it is left out because of the others.
    pub(super) fn leave_out(&mut self, key: &Key, holder: &str, size: Option<usize>) {
        self.delete(key);
        let is_listed = self
            .listing
            .as_ref()
            .is_none_or(|listing| !listing.missing.contains(key) || listing.written.contains(key));
        let is_new = self.left_out.add(key.clone(), holder, size, is_listed);
        if is_new && self.left_out.count() <= LOGGED {
            let (namespace, name) = key.split_once(BETWEEN).unwrap_or_default();
            tracing::warn!(
                kind = %K::kind(&()), namespace, name,
                "{}; nothing is done for it until then", too_large::<K>()
            );
        }
    }

    /// Leaves out what is kept, because another namespace has less.
    fn push_out(&mut self, key: &Key) {
        self.budget.forget(key);
        if let Some(object) = self.objects.get(key).map(StoredObject::get) {
            let size = self.size(key, &object);
            self.leave_out(key, holder_of(&*object).unwrap_or_default(), Some(size));
            self.left_out.announce(key);
            self.pushed_out.push(object);
        }
    }

    /// What an object counts before it is packed.
    fn size(&self, key: &Key, object: &K) -> usize {
        budget::counted(key, budget::bytes(object, self.form.is_packed()))
    }

    /// Keeps an object, or returns it if the others leave no room for it.
    pub(super) fn apply(&mut self, key: Key, mut object: K) -> Option<K> {
        // Managed fields are never read, and are often half of an object. The client has dropped
        // those of most kinds.
        object.meta_mut().managed_fields = None;
        let size = self.size(&key, &object);
        loop {
            match self.budget.admission(&key, holder_of(&object), size) {
                ObjectAdmission::Keep => break,
                ObjectAdmission::PushOut(other) => self.push_out(&other),
                ObjectAdmission::LeaveOut => {
                    let holder = holder_of(&object).unwrap_or_default();
                    self.leave_out(&key, holder, Some(size));
                    return Some(object);
                }
            }
        }
        self.left_out.remove(&key);
        let new = Arc::new(object);
        let mut old = self.objects.get(&key).map(StoredObject::get);
        if let Some(gone) = &old
            && !is_same(gone.uid().as_deref(), new.uid().as_deref())
        {
            // The watch missed the deletion of the old object. Forget everything stored about it.
            self.delete(&key);
            old = None;
        }
        self.budget.note(&key, holder_of(&*new), size);
        self.objects
            .insert(key.clone(), StoredObject::Open(new.clone()));
        if let Some(displaced) = self.form.note(&key) {
            self.pack(&displaced);
        }
        let mut texts = Vec::new();
        for index in &mut self.indexes {
            if let Some(old) = &old {
                index.remove(&key, old);
            }
            index.add(&key, &new, &mut texts);
        }
        self.notify(&Change::Applied { old, new });
        None
    }

    /// Packs a kept object, if the kind is packed.
    fn pack(&mut self, key: &Key) {
        let near = self.dictionary_near(key);
        if let Some(object) = self.objects.get_mut(key)
            && let Some(bytes) = self.form.pack(object, near)
        {
            let size = budget::counted(key, bytes);
            self.budget.resize(key, size);
        }
    }

    /// The dictionary of one of the next objects before or after this key, in the same namespace.
    fn dictionary_near(&self, key: &Key) -> Option<Arc<Dictionary<K>>> {
        let (namespace, _) = key.split_once(BETWEEN)?;
        let before = self.objects.range(..key.clone()).rev().take(NEAR);
        let after = self.objects.range(key.clone()..).take(NEAR);
        before.chain(after).find_map(|(other, object)| {
            let (of, _) = other.split_once(BETWEEN)?;
            object.dictionary().filter(|_| of == namespace)
        })
    }

    pub(super) fn delete(&mut self, key: &Key) {
        let Some(old) = self.objects.remove(key).map(|old| old.get()) else {
            return;
        };
        self.form.forget(key);
        self.budget.forget(key);
        for index in &mut self.indexes {
            index.remove(key, &old);
        }
        self.notify(&Change::Deleted(old));
    }

    fn notify(&self, change: &Change<K>) {
        for (_, handler) in &self.handlers {
            handler(change);
        }
    }
}
