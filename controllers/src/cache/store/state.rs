//! What a store keeps, and how a change reaches its indexes and handlers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;

use super::budget::{self, Admission, Budget};
use super::compress::{Encoding, StoredObject};
use super::holder::holder_of;
use super::index::IndexState;
use super::select::Selector;
use super::{BETWEEN, Change, Handler, Key, Subscription, is_same};
use crate::client::kube::{Resource, too_large};

/// How many objects that are too large are logged at a time: a user can make any number of them.
const LOGGED: usize = 100;

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
    /// The keys of the objects that are too large to be kept, or too many.
    pub(super) left_out: BTreeSet<Key>,
    /// Those of them that their users do not know of, until the watch reports one.
    pub(super) untold: BTreeSet<Key>,
    pub(super) budget: Budget,
    /// What was kept until others needed the room. Their users are to learn of it.
    pub(super) pushed_out: Vec<Arc<K>>,
}

/// What happened since a list began.
#[derive(Default)]
pub(super) struct Listing {
    /// The keys that it has reported.
    pub(super) reported: BTreeSet<Key>,
    /// The keys of own writes. The list may show an older state of them, but of no other object.
    pub(super) written: BTreeSet<Key>,
}

impl<K: Resource> State<K> {
    /// Forgets an object that is too large, except that there is one. Its users are to learn of it.
    pub(super) fn leave_out(&mut self, key: Key) {
        self.delete(&key);
        self.budget.forget_left_out(&key);
        if !self.left_out.insert(key.clone()) {
            return;
        }
        self.untold.insert(key.clone());
        if self.left_out.len() <= LOGGED {
            let (namespace, name) = key.split_once(BETWEEN).unwrap_or_default();
            tracing::warn!(
                kind = %K::kind(&()), namespace, name,
                "{}; nothing is done for it until then", too_large::<K>()
            );
        }
    }

    /// Notes that an object is kept or gone.
    pub(super) fn forget_left_out(&mut self, key: &Key) {
        self.left_out.remove(key);
        self.untold.remove(key);
        self.budget.forget_left_out(key);
    }

    /// Leaves out what is kept, because another namespace has less.
    fn push_out(&mut self, key: Key) {
        self.budget.forget(&key);
        let object = self.objects.get(&key).map(StoredObject::get);
        self.leave_out(key.clone());
        self.untold.remove(&key);
        if let Some(object) = object {
            let size = self.size(&key, &object);
            self.budget.leave_out(key, holder_of(&*object), size);
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
                Admission::Keep => break,
                Admission::PushOut(other) => self.push_out(other),
                Admission::LeaveOut => {
                    self.leave_out(key.clone());
                    self.budget.leave_out(key, holder_of(&object), size);
                    return Some(object);
                }
            }
        }
        self.forget_left_out(&key);
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
        if let Some(displaced) = self.form.note(&key)
            && let Some(object) = self.objects.get_mut(&displaced)
            && let Some(bytes) = self.form.pack(object)
        {
            let size = budget::counted(&displaced, bytes);
            self.budget.resize(&displaced, size);
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
