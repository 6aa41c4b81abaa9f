//! A Kubernetes API server in memory, for tests of its clients.
//!
//! It answers as kube-apiserver does where hostloop depends on it: kinds, versions, preconditions,
//! finalizers, selectors, pages, watches, status subresources and server-side applies.
//! [`conformance`] has the cases that run both here and on a real API server. [`Fault`]s stand in
//! for failures, and fixed answers ([`FakeApi::answer`]) for all the rest, such as logs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};

use connection::Observer;
use failure::Failure;
use faults::{Faults, Rule};
use path::{Key, Target};
use request::RecordedRequest;
use store::Store;

pub use connection::{Connection, Write};
pub use faults::{Fault, RequestInfo};
pub use store::Backup;

mod apply;
pub mod conformance;
mod connection;
mod failure;
mod faults;
mod kinds;
mod path;
pub mod quantity;
mod request;
mod reviews;
mod rules;
mod select;
mod store;
mod watch;
mod writes;

type Answer = Result<(u16, Value), Failure>;

/// The number of requests to remember, unless a test sets another.
const REMEMBERED: usize = 10_000;

const WRITES: &[&str] = &["POST", "PUT", "PATCH", "DELETE"];

struct State {
    store: Store,
    /// Fixed answers by path.
    answers: BTreeMap<String, (u16, String)>,
    /// The latest requests and notes.
    recorded: VecDeque<RecordedRequest>,
    remembered: usize,
    faults: Faults,
    observers: Vec<Observer>,
}

impl Default for State {
    fn default() -> State {
        State {
            store: Store::default(),
            answers: BTreeMap::new(),
            recorded: VecDeque::new(),
            remembered: REMEMBERED,
            faults: Faults::default(),
            observers: Vec::new(),
        }
    }
}

/// The API server. Clones share it.
#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

impl FakeApi {
    /// Creates a server with the definitions of the snapshot API.
    pub fn with_snapshots() -> FakeApi {
        let api = FakeApi::default();
        for definition in kinds::snapshot_definitions() {
            api.put(definition);
        }
        api
    }

    /// Creates a server as a cluster has it. Objects need a namespace, creates are completed and
    /// checked, and nothing but a garbage collector removes what an object owns.
    pub fn cluster() -> FakeApi {
        let api = FakeApi::with_snapshots();
        api.0.lock().store.is_cluster = true;
        for name in ["default", "kube-system"] {
            api.put(json!({"kind": "Namespace", "metadata": {"name": name},
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}));
        }
        api
    }

    /// Limits the requests that the server remembers for a test.
    pub fn remember(&self, requests: usize) {
        let mut state = self.0.lock();
        state.remembered = requests;
        while state.recorded.len() > requests {
            state.recorded.pop_front();
        }
    }

    /// Limits the changes that the server keeps from now on: a watch or a page from before them
    /// fails.
    pub fn keep(&self, changes: usize) {
        let store = &mut self.0.lock().store;
        store.kept = changes;
        store.compact(changes);
    }

    /// Drops the changes so far, as a compaction does: a watch or a page from before them fails.
    pub fn compact(&self) {
        self.0.lock().store.compact(0);
    }

    /// The version of the server's last change.
    pub fn version(&self) -> u64 {
        self.0.lock().store.version
    }

    /// Ends all watches. Their clients start others.
    pub fn end_watches(&self) {
        self.0.lock().store.watchers.clear();
    }

    /// Backs the objects up.
    pub fn backup(&self) -> Backup {
        self.0.lock().store.backup()
    }

    /// Goes back to a backup, as a server that is restored from one does. Its version goes back
    /// too, and watches end.
    pub fn restore(&self, backup: &Backup) {
        self.0.lock().store.restore(backup);
    }

    /// Makes the server unreachable: watches break off, and requests fail with a refused
    /// connection.
    pub fn go_away(&self) {
        let mut state = self.0.lock();
        state.faults.is_away = true;
        state
            .store
            .watchers
            .drain(..)
            .for_each(|watcher| watcher.break_off());
    }

    /// Makes the server reachable again.
    pub fn come_back(&self) {
        self.0.lock().faults.is_away = false;
    }

    /// Decides about each request before it takes effect. Faults that are set otherwise come first.
    pub fn on_request(&self, decide: impl FnMut(&RequestInfo) -> Option<Fault> + Send + 'static) {
        self.0.lock().faults.decide = Some(Box::new(decide));
    }

    /// Sees each write that took effect, beside all others that see them. It must not call the
    /// server.
    pub fn on_write(&self, see: impl FnMut(&Write) + Send + 'static) {
        self.0.lock().observers.push(Box::new(see));
    }

    /// The listener hears of each change of an object, as it was and as it is: of all clients, by
    /// [`FakeApi::put`] and by a restore.
    pub fn on_change(
        &self,
        listener: impl FnMut(Option<&Arc<Value>>, Option<&Arc<Value>>) + Send + 'static,
    ) {
        self.0.lock().store.listener = Some(Box::new(listener));
    }

    /// Puts an object in, status included, as if another client had written it, and returns it as
    /// stored. An object may leave out its version.
    pub fn put(&self, mut object: Value) -> Value {
        let mut state = self.0.lock();
        if object["apiVersion"].is_null() {
            let kinds = state.store.kinds();
            let kind = kinds.iter().find(|kind| object["kind"] == *kind.kind);
            object["apiVersion"] = json!(kind.expect("a served kind").version);
        }
        state.store.put(Key::of(&object), object)
    }

    /// Puts an object in at a path, which says kind, namespace and name. A path without a name
    /// leaves it to the object.
    pub fn set(&self, path: &str, mut object: Value) {
        let mut state = self.0.lock();
        let target = Target::of(path).expect("a path");
        let kind = state.store.kind(&target).expect("a served kind");
        object["apiVersion"] = json!(kind.version);
        object["kind"] = json!(kind.kind);
        for (field, text) in [("namespace", target.namespace), ("name", target.name)] {
            if let Some(text) = text {
                object["metadata"][field] = json!(text);
            }
        }
        state.store.put(Key::of(&object), object);
    }

    /// Returns the object with a path that ends with `path`. A whole path is found at once.
    pub fn get(&self, path: &str) -> Option<Value> {
        let found = self.shared_at(path)?;
        Some(Value::clone(&found))
    }

    /// Returns the object with a path that ends with `path` without copying it.
    pub fn shared_at(&self, path: &str) -> Option<Arc<Value>> {
        let state = self.0.lock();
        let is_whole = path.starts_with("/api/") || path.starts_with("/apis/");
        if let Some(key) = Key::at(path).filter(|_| is_whole) {
            return state.store.objects.get(&key).cloned();
        }
        let mut objects = state.store.objects.iter();
        let found = objects.find(|(key, _)| key.path().ends_with(path));
        found.map(|(_, object)| object.clone())
    }

    /// Returns all objects of a kind (by plural).
    pub fn all(&self, plural: &str) -> Vec<Value> {
        let state = self.0.lock();
        let all = state.store.all_of(plural).into_iter();
        all.map(|object| Value::clone(object)).collect()
    }

    /// Returns all objects of a kind (by plural) without copying them.
    pub fn shared(&self, plural: &str) -> Vec<Arc<Value>> {
        self.0
            .lock()
            .store
            .all_of(plural)
            .into_iter()
            .cloned()
            .collect()
    }

    /// Removes the objects with paths that end with `path`, even with finalizers.
    pub fn take(&self, path: &str) {
        let store = &mut self.0.lock().store;
        let gone = store
            .objects
            .keys()
            .filter(|key| key.path().ends_with(path))
            .cloned();
        for key in gone.collect::<Vec<_>>() {
            store.remove(&key);
        }
    }

    /// Refuses the next write to a path with this suffix. A suffix that ends with `?watch` applies
    /// to watches.
    pub fn refuse(&self, path: &str, code: u16) {
        let methods = if path.ends_with("?watch") {
            &["GET"]
        } else {
            WRITES
        };
        self.fault(methods, path, Some(1), Fault::Refuse(code));
    }

    /// Refuses all further reads of paths with this suffix.
    pub fn hide(&self, path: &str, code: u16) {
        self.fault(&["GET"], path, None, Fault::Refuse(code));
    }

    /// Makes the next `left` requests fail (all if `None`). An empty `methods` means any method.
    /// `path` is a suffix of the request path, or the plural of the kind.
    pub fn fault(
        &self,
        methods: &'static [&'static str],
        path: &str,
        left: Option<usize>,
        fault: Fault,
    ) {
        let path = path.to_owned();
        self.0.lock().faults.rules.push(Rule {
            methods,
            path,
            left,
            fault,
        });
    }

    /// Fixes the answer to all requests for a path.
    pub fn answer(&self, path: &str, code: u16, body: impl ToString) {
        self.0
            .lock()
            .answers
            .insert(path.to_owned(), (code, body.to_string()));
    }

    /// Makes it a server of Kubernetes 1.`minor`.
    pub fn minor(&self, minor: u32) {
        self.answer("/version", 200, kinds::version(minor));
    }

    /// Runs a controller for each object that a client creates. The controller completes the
    /// object, and returns others.
    pub fn on_create(&self, react: impl Fn(&mut Value) -> Vec<Value> + Send + 'static) {
        self.0.lock().store.controller = Some(Box::new(react));
    }

    /// Issues a token of a user for these audiences. Reviews know no other token.
    pub fn issue(&self, token: &str, user: &str, audiences: &[&str]) {
        let reviews = &mut self.0.lock().store.reviews;
        reviews.issue(token, user, audiences);
    }

    /// Revokes a token, as its end does.
    pub fn revoke(&self, token: &str) {
        self.0.lock().store.reviews.revoke(token);
    }

    /// Gives a user the right to do this with a resource, such as `pods` or
    /// `volumesnapshots.snapshot.storage.k8s.io`. From the first call on, reviews know only these rights
    /// and those of administrators.
    pub fn allow(&self, user: &str, verb: &str, resource: &str, namespace: &str) {
        let reviews = &mut self.0.lock().store.reviews;
        reviews.allow([user, verb, resource, namespace]);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.0.lock().faults.rules.clear();
    }

    /// Drops a status field of a kind (by plural), like a CRD without that field.
    pub fn undefine(&self, plural: &'static str, field: &'static str) {
        self.0.lock().store.undefined.push((plural, field));
    }

    /// Enables the feature gate CSIVolumeHealth: the status of a claim has the health of its volume.
    pub fn store_volume_health(&self) {
        self.0.lock().store.has_volume_health = true;
    }

    /// Stops to serve a kind (by plural), like an older API server or one without the definition.
    pub fn lack(&self, plural: &'static str) {
        let store = &mut self.0.lock().store;
        store.lacking.insert(plural);
        store.kinds = None;
    }

    /// Serves a kind again.
    pub fn serve(&self, plural: &'static str) {
        let store = &mut self.0.lock().store;
        store.lacking.remove(plural);
        store.kinds = None;
    }

    /// Logs a note between the requests, such as a call to a driver.
    pub fn note(&self, path: String) {
        self.0.lock().remember(RecordedRequest {
            path,
            ..RecordedRequest::default()
        });
    }

    /// All requests since the last look as they were sent: `GET PATH?QUERY`.
    pub fn requests(&self) -> Vec<String> {
        let all = self.0.lock().taken(|_| true);
        all.iter()
            .map(|request| format!("{} {}", request.method, request.uri))
            .collect()
    }

    /// All requests and notes since the last look, except lists and watches.
    pub fn happened(&self) -> Vec<String> {
        let is_one = |request: &RecordedRequest| request.list().is_none() && !request.is_watch();
        let all = self.0.lock().taken(is_one);
        all.into_iter().map(RecordedRequest::line).collect()
    }

    /// All requests and notes since the last look, without bodies: `POST ns/kind/name`.
    pub fn log(&self) -> Vec<String> {
        let all = self.0.lock().taken(|_| true);
        let entry = |request: &RecordedRequest| match request.method.as_str() {
            "" => request.path.clone(),
            method => format!("{method} {}", request.short()),
        };
        all.iter().map(entry).collect()
    }

    /// What was written to since the last look: `name[/status]`. The objects show what changed.
    pub fn writes(&self) -> Vec<String> {
        let is_write = |request: &RecordedRequest| WRITES.contains(&request.method.as_str());
        let writes = self.0.lock().taken(is_write);
        writes.iter().map(RecordedRequest::write).collect()
    }

    /// The lists since the last look, with their selectors: `pods fieldSelector=a=b`.
    pub fn lists(&self) -> Vec<String> {
        let lists = self.0.lock().taken(|request| request.list().is_some());
        lists.iter().filter_map(RecordedRequest::list).collect()
    }

    /// Creates a client of the server.
    pub fn client(&self) -> Client {
        self.connect("").client()
    }
}

impl State {
    /// Remembers a request, in place of the oldest one if there are many.
    fn remember(&mut self, request: RecordedRequest) {
        self.recorded.push_back(request);
        while self.recorded.len() > self.remembered {
            self.recorded.pop_front();
        }
    }

    fn taken(&mut self, which: impl Fn(&RecordedRequest) -> bool) -> Vec<RecordedRequest> {
        let (taken, left) = self.recorded.drain(..).partition(|request| which(request));
        self.recorded = left;
        Vec::from(taken)
    }
}

#[cfg(test)]
mod tests;
