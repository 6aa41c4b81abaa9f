//! Which objects concern hostloop: the page and its recordings have no others.
//!
//! Some objects say so themselves, such as a volume of the driver. Others concern it through one
//! that they name: a claim through its class or volume, a pod through its claim, an event through
//! what it is about. Such an object waits until what it names is shown. What was shown once stays
//! until it is deleted: a claim does not vanish when its volume is deleted first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use super::history::History;
use super::message::Message;
use super::verdict_facts::VerdictFacts;

/// Shown objects that are remembered after their end, for events about it.
const REMEMBERED: usize = 16 << 10;

/// A kind and the key of an object of it.
pub(super) type Name = (String, String);

/// Why an object concerns hostloop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Concern {
    /// It says so itself.
    pub(super) itself: bool,
    /// It does if one of these does.
    pub(super) through: Vec<Name>,
}

/// The objects of all watches. Clones share them.
#[derive(Clone)]
pub(super) struct Concerns {
    history: Arc<History>,
    facts: VerdictFacts,
    state: Arc<Mutex<ConcernsState>>,
}

#[derive(Default)]
struct ConcernsState {
    objects: BTreeMap<Name, KnownObject>,
    /// The objects that name another one.
    users: BTreeMap<Name, BTreeSet<Name>>,
    ended: BTreeSet<Name>,
    /// The same, oldest first.
    ended_order: VecDeque<Name>,
}

struct KnownObject {
    uid: String,
    through: Vec<Name>,
    /// The object, until it is shown.
    waiting: Option<Value>,
}

impl Concerns {
    /// What is shown goes into the history and to the verdicts.
    pub(super) fn new(history: Arc<History>, facts: VerdictFacts) -> Concerns {
        Concerns {
            history,
            facts,
            state: Arc::default(),
        }
    }

    /// Takes the state of an object, and adds it to the history if it concerns hostloop.
    pub(super) fn set(&self, kind: &str, key: &str, object: Value, concern: Concern) {
        let name = (kind.to_owned(), key.to_owned());
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
        let uid = uid.unwrap_or_default().to_owned();
        let mut state = self.state.lock();
        let before = state.remove(&name);
        let was_shown = before.as_ref().is_some_and(|entry| entry.waiting.is_none());
        let is_same = before.is_some_and(|entry| entry.uid == uid);
        let is_shown = (was_shown && is_same)
            || concern.itself
            || concern.through.iter().any(|other| state.is_shown(other));
        for other in &concern.through {
            state
                .users
                .entry(other.clone())
                .or_default()
                .insert(name.clone());
        }
        let waiting = (!is_shown).then(|| object.clone());
        let entry = KnownObject {
            uid,
            through: concern.through,
            waiting,
        };
        state.objects.insert(name.clone(), entry);
        if is_shown {
            self.show(kind, key, &object);
            if let Some(any) = any_claim_beside(&name) {
                state.remember(any);
            }
            self.show_users(&mut state, name);
        } else if was_shown {
            self.hide(kind, key);
        }
    }

    /// Takes the end of an object.
    pub(super) fn delete(&self, kind: &str, key: &str) {
        let name = (kind.to_owned(), key.to_owned());
        let mut state = self.state.lock();
        if state
            .remove(&name)
            .is_some_and(|entry| entry.waiting.is_none())
        {
            self.hide(kind, key);
            // Events about events don't exist.
            if kind != "Event" {
                state.remember(name);
            }
        }
    }

    fn show(&self, kind: &str, key: &str, object: &Value) {
        self.history.add(Message::set(kind, key, object));
        self.facts.set(kind, key, object);
    }

    fn hide(&self, kind: &str, key: &str) {
        self.history.add(Message::deleted(kind, key));
        self.facts.delete(kind, key);
    }

    /// Shows what waits for an object that is shown now.
    fn show_users(&self, state: &mut ConcernsState, shown: Name) {
        let mut all: Vec<Name> = any_claim_beside(&shown)
            .into_iter()
            .chain([shown])
            .collect();
        while let Some(next) = all.pop() {
            for user in state.users.get(&next).cloned().unwrap_or_default() {
                let waiting = state
                    .objects
                    .get_mut(&user)
                    .and_then(|entry| entry.waiting.take());
                if let Some(object) = waiting {
                    self.show(&user.0, &user.1, &object);
                    if let Some(any) = any_claim_beside(&user) {
                        state.remember(any.clone());
                        all.push(any);
                    }
                    all.push(user);
                }
            }
        }
    }
}

/// Stands for any claim of hostloop's in a namespace: a group of snapshots chooses claims by their
/// labels, and has no content yet.
pub(super) fn any_claim_in(namespace: &str) -> Name {
    ("any PersistentVolumeClaim".to_owned(), namespace.to_owned())
}

fn any_claim_beside((kind, key): &Name) -> Option<Name> {
    let (namespace, _) = key.split_once('/')?;
    (kind == "PersistentVolumeClaim").then(|| any_claim_in(namespace))
}

impl ConcernsState {
    fn is_shown(&self, name: &Name) -> bool {
        let known = self.objects.get(name);
        known.is_some_and(|entry| entry.waiting.is_none())
            || (known.is_none() && self.ended.contains(name))
    }

    fn remove(&mut self, name: &Name) -> Option<KnownObject> {
        let entry = self.objects.remove(name)?;
        for other in &entry.through {
            if let Some(users) = self.users.get_mut(other) {
                users.remove(name);
                if users.is_empty() {
                    self.users.remove(other);
                }
            }
        }
        Some(entry)
    }

    fn remember(&mut self, name: Name) {
        if self.ended.insert(name.clone()) {
            self.ended_order.push_back(name);
        }
        if self.ended_order.len() > REMEMBERED
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
