//! Stores the objects and their versions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::Answer;
use super::failure::Failure;
use super::kinds::{DEFINITIONS, Kind};
use super::path::{Key, Target};
use super::reviews::Reviews;
use super::select::selects;
use super::watch::{Lines, Watcher};

/// The number of changes that watches and pages can start from, unless a test sets another.
const KEPT_CHANGES: usize = 10_000;

/// Completes a new object as a controller does, and returns others that the controller makes.
pub(super) type Controller = Box<dyn Fn(&mut Value) -> Vec<Value> + Send>;

/// Hears of each change of an object: as it was and as it is.
pub(super) type ChangeListener = Box<dyn FnMut(Option<&Arc<Value>>, Option<&Arc<Value>>) + Send>;

/// A change of an object at a version.
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) key: Key,
    pub(super) old: Option<Arc<Value>>,
    pub(super) new: Option<Arc<Value>>,
}

/// The objects at a version, from which a server can be restored.
#[derive(Clone)]
pub struct Backup {
    objects: BTreeMap<Key, Arc<Value>>,
    applied: BTreeMap<(Key, String), Value>,
    version: u64,
}

pub(super) struct Store {
    pub(super) objects: BTreeMap<Key, Arc<Value>>,
    pub(super) version: u64,
    pub(super) watchers: Vec<Watcher>,
    /// Status fields that a kind, by its plural, does not have.
    pub(super) undefined: Vec<(&'static str, &'static str)>,
    /// Kinds, by their plurals, that are not served.
    pub(super) lacking: BTreeSet<&'static str>,
    /// The last configurations that were applied, by object and manager.
    pub(super) applied: BTreeMap<(Key, String), Value>,
    /// Runs for each object that a client creates.
    pub(super) controller: Option<Controller>,
    pub(super) listener: Option<ChangeListener>,
    /// The served kinds; none until the first request after a change of them.
    pub(super) kinds: Option<Arc<[Arc<Kind>]>>,
    /// True for a server with namespaces, admission and validation, and without a garbage
    /// collector.
    pub(super) is_cluster: bool,
    /// True for a server with the feature gate CSIVolumeHealth.
    pub(super) has_volume_health: bool,
    /// The tokens and rights that reviews know.
    pub(super) reviews: Reviews,
    /// The number of changes to keep.
    pub(super) kept: usize,
    /// The latest changes.
    changes: VecDeque<Change>,
    /// The version of the last change that has been dropped.
    compacted: u64,
    /// The last number of a name or UID: unlike the version, it never goes back.
    serial: u64,
}

impl Default for Store {
    fn default() -> Store {
        Store {
            objects: BTreeMap::new(),
            version: 0,
            watchers: Vec::new(),
            undefined: Vec::new(),
            lacking: BTreeSet::new(),
            applied: BTreeMap::new(),
            controller: None,
            listener: None,
            kinds: None,
            is_cluster: false,
            has_volume_health: false,
            reviews: Reviews::default(),
            kept: KEPT_CHANGES,
            changes: VecDeque::new(),
            compacted: 0,
            serial: 0,
        }
    }
}

impl Store {
    pub(super) fn put(&mut self, key: Key, mut object: Value) -> Value {
        if object["metadata"]["uid"].is_null() {
            self.serial = self.next_serial();
            object["metadata"]["uid"] = json!(if self.is_cluster {
                format!("{:08x}-0000-4000-8000-{:012x}", self.serial, self.serial)
            } else {
                format!("uid-{}", self.serial)
            });
        }
        self.set(key, object)
    }

    /// The number of the next name or UID.
    pub(super) fn next_serial(&self) -> u64 {
        self.serial.max(self.version) + 1
    }

    /// Removes an object, even with finalizers, and what it owns, as the garbage collector does.
    /// On a server of a cluster, what it owns stays: a garbage collector finds it.
    pub(super) fn remove(&mut self, key: &Key) {
        let mut gone = vec![key.clone()];
        while let Some(key) = gone.pop() {
            let Some(old) = self.objects.remove(&key) else {
                continue;
            };
            if !self.is_cluster {
                let uid = &old["metadata"]["uid"];
                let is_owned = |object: &Value| {
                    let owners = object["metadata"]["ownerReferences"].as_array();
                    owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *uid))
                };
                let owned = self.objects.iter().filter(|(_, object)| is_owned(object));
                gone.extend(owned.map(|(key, _)| key.clone()));
            }
            self.applied.retain(|(applied, _), _| *applied != key);
            self.changed(key, Some(old), None);
        }
    }

    /// Stores an object at the next version.
    pub(super) fn set(&mut self, key: Key, mut object: Value) -> Value {
        if &*key.plural == DEFINITIONS {
            object["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        }
        object["metadata"]["resourceVersion"] = json!((self.version + 1).to_string());
        let stored = Arc::new(object.clone());
        let old = self.objects.insert(key.clone(), stored.clone());
        self.changed(key, old, Some(stored));
        object
    }

    fn changed(&mut self, key: Key, old: Option<Arc<Value>>, new: Option<Arc<Value>>) {
        if &*key.plural == DEFINITIONS {
            self.kinds = None;
        }
        if let Some(listener) = &mut self.listener {
            listener(old.as_ref(), new.as_ref());
        }
        self.version += 1;
        let change = Change {
            version: self.version,
            key,
            old,
            new,
        };
        let lines = Lines::of(&change);
        self.watchers.retain(|watcher| watcher.notify(&lines));
        self.changes.push_back(change);
        self.compact(self.kept);
    }

    /// Drops all but the latest changes.
    pub(super) fn compact(&mut self, kept: usize) {
        while self.changes.len() > kept {
            self.compacted = self
                .changes
                .pop_front()
                .map_or(self.version, |gone| gone.version);
        }
    }

    /// The changes after a version, oldest first. Fails if some of them have been dropped.
    pub(super) fn changes_since(
        &self,
        version: u64,
    ) -> Result<impl DoubleEndedIterator<Item = &Change>, Failure> {
        if version < self.compacted {
            return Err(Failure::expired(version, self.compacted));
        }
        let first = self
            .changes
            .partition_point(|change| change.version <= version);
        Ok(self.changes.range(first..))
    }

    /// All objects of a kind, by its plural, in all its versions.
    pub(super) fn all_of(&self, plural: &str) -> Vec<&Arc<Value>> {
        let mut all = Vec::new();
        let mut next = self.objects.keys().next();
        while let Some(Key { version, .. }) = next {
            let of_kind = self.objects.range(Key::first(version.clone(), plural)..);
            let of_kind = of_kind
                .take_while(|(key, _)| key.version == *version && *key.plural == *plural)
                .map(|(_, object)| object);
            all.extend(of_kind);
            // No version is between this one and the next.
            let after = Key::first(format!("{version}\0").into(), "");
            next = self.objects.range(after..).next().map(|(key, _)| key);
        }
        all
    }

    /// The objects of a list, without its selectors.
    pub(super) fn objects_of<'a>(
        &'a self,
        target: &'a Target,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
        let first = target.key(target.name.as_deref().unwrap_or_default());
        let all = self.objects.range(first..);
        let within = move |key: &Key| {
            *key.version == *target.version
                && *key.plural == *target.plural
                && (target.namespace.is_none()
                    || key.namespace.as_deref() == target.namespace.as_deref())
        };
        // A list of all namespaces may be preceded by no other object of its kind.
        all.take_while(move |(key, _)| within(key))
            .filter(|(key, _)| target.contains(key))
    }

    /// Returns a page of a list. All pages show the objects at the version of the first page.
    pub(super) fn list(
        &self,
        kind: &Kind,
        target: &Target,
        query: &BTreeMap<String, String>,
    ) -> Answer {
        let (version, after) = match query.get("continue").filter(|token| !token.is_empty()) {
            None => (self.version, None),
            Some(token) => {
                let (version, place) = token.split_once(' ').expect("a token of this server");
                (version.parse().expect("a version"), Some(place.to_owned()))
            }
        };
        let mut objects: BTreeMap<&Key, &Value> = self
            .objects_of(target)
            .map(|(key, object)| (key, &**object))
            .collect();
        for change in self
            .changes_since(version)?
            .rev()
            .filter(|one| target.contains(&one.key))
        {
            match &change.old {
                Some(old) => objects.insert(&change.key, old),
                None => objects.remove(&change.key),
            };
        }
        let mut rest = objects.iter().filter(|(key, object)| {
            after.as_ref().is_none_or(|after| key.place() > *after) && selects(query, object)
        });
        let limit = query.get("limit").and_then(|limit| limit.parse().ok());
        let page: Vec<_> = rest.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let (Some((last, _)), Some(_)) = (page.last(), rest.next()) {
            metadata["continue"] = json!(format!("{version} {}", last.place()));
        }
        let mut items: Vec<Value> = page
            .into_iter()
            .map(|(_, object)| (*object).clone())
            .collect();
        if !kind.is_custom {
            for item in items.iter_mut().filter_map(Value::as_object_mut) {
                item.retain(|field, _| !["apiVersion", "kind"].contains(&field.as_str()));
            }
        }
        let list = json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.version,
            "metadata": metadata, "items": items});
        Ok((200, list))
    }

    pub(super) fn backup(&self) -> Backup {
        let Store {
            objects,
            applied,
            version,
            ..
        } = self;
        Backup {
            objects: objects.clone(),
            applied: applied.clone(),
            version: *version,
        }
    }

    /// Goes back to a backup, its version included. Watches end, and the changes since are unknown.
    /// The serial stays, so that no UID is given twice.
    pub(super) fn restore(&mut self, backup: &Backup) {
        let Backup {
            objects,
            applied,
            version,
        } = backup.clone();
        if let Some(listener) = &mut self.listener {
            let gone = self
                .objects
                .iter()
                .filter(|(key, _)| !objects.contains_key(key));
            gone.for_each(|(_, old)| listener(Some(old), None));
            for (key, new) in &objects {
                let old = self.objects.get(key);
                if old.is_none_or(|old| !Arc::ptr_eq(old, new)) {
                    listener(old, Some(new));
                }
            }
        }
        (self.objects, self.applied, self.version) = (objects, applied, version);
        self.watchers.clear();
        self.changes.clear();
        self.compacted = version;
        self.kinds = None;
    }
}

/// The time of the wall clock, to the second.
pub(super) fn now() -> String {
    time_in(0)
}

/// The time in some seconds.
pub(super) fn time_in(seconds: i64) -> String {
    let now = Timestamp::now().as_second() + seconds;
    let time = Timestamp::from_second(now).expect("a time within range");
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
