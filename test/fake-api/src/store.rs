//! Stores the objects and their versions, and applies requests to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde_json::{Value, json};

use super::kinds::{DEFINITIONS, Kind};
use super::path::{Key, Target};
use super::select::selects;
use super::watch::Watcher;
use super::{Answer, Asked};

/// The creation and deletion time of all objects.
const NOW: &str = "2026-01-01T00:00:00Z";

/// The message for a JSON patch that can't be applied. The answer has no reason.
const UNFIT_PATCH: &str = "the server rejected our request due to an error in our request";

/// An error as the API server reports it.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
}

impl Failure {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Failure {
        let message = message.into();
        Failure { code, reason, message }
    }

    /// The failure that a test requested.
    pub(super) fn scripted(code: u16, asked: &Asked) -> Failure {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => return Failure::forbidden(asked, "u"),
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            422 => "Invalid",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "InternalError",
        };
        Failure::new(code, reason, "refused")
    }

    /// The failure of a request for which a user lacks the right.
    pub(super) fn forbidden(asked: &Asked, user: &str) -> Failure {
        let Some(target) = Target::of(&asked.path) else {
            let message = format!("forbidden: User {user:?} cannot get path {:?}", asked.path);
            return Failure::new(403, "Forbidden", message);
        };
        let verb = match (asked.method.as_str(), target.subresource.as_deref()) {
            // The exec of a pod is a GET.
            ("POST", _) | (_, Some("exec")) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", _) => "delete",
            _ if asked.is_watch() => "watch",
            _ if target.name.is_none() => "list",
            _ => "get",
        };
        let plural = &target.plural;
        let subresource = target.subresource.map(|part| format!("/{part}")).unwrap_or_default();
        let object = target.name.map(|name| format!(" {name:?}")).unwrap_or_default();
        let group = target.version.split_once('/').map_or("", |(group, _)| group);
        let dot = if group.is_empty() { "" } else { "." };
        let place = match &target.namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let message = format!(
            "{plural}{dot}{group}{object} is forbidden: User {user:?} cannot {verb} resource \
             \"{plural}{subresource}\" in API group {group:?} {place}"
        );
        Failure::new(403, "Forbidden", message)
    }

    pub(super) fn no_resource() -> Failure {
        Failure::new(404, "NotFound", "the server could not find the requested resource")
    }

    fn not_found(key: &Key) -> Failure {
        Failure::new(404, "NotFound", format!("{} {:?} not found", key.plural, key.name))
    }

    fn conflict(key: &Key, why: &str) -> Failure {
        let object = format!("{} {:?}", key.plural, key.name);
        let message = format!("Operation cannot be fulfilled on {object}: {why}");
        Failure::new(409, "Conflict", message)
    }

    fn invalid(key: &Key, why: &str) -> Failure {
        let message = format!("{} {:?} is invalid: {why}", key.plural, key.name);
        Failure::new(422, "Invalid", message)
    }

    pub(super) fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}

/// Completes a new object as a controller does, and returns others that the controller makes.
pub(super) type Controller = Box<dyn Fn(&mut Value) -> Vec<Value> + Send>;

/// A change of an object at a version.
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) key: Key,
    pub(super) old: Option<Value>,
    pub(super) new: Option<Value>,
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) objects: BTreeMap<Key, Value>,
    pub(super) changes: Vec<Change>,
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
}

impl Store {
    pub(super) fn put(&mut self, key: Key, mut object: Value) -> Value {
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version + 1));
        }
        self.set(key, object)
    }

    /// Removes objects, even with finalizers, and what they own, as the garbage collector does.
    pub(super) fn remove(&mut self, which: impl Fn(&Key) -> bool) {
        let mut gone: Vec<Key> = self.objects.keys().filter(|key| which(key)).cloned().collect();
        while let Some(key) = gone.pop() {
            let Some(old) = self.objects.remove(&key) else { continue };
            let uid = &old["metadata"]["uid"];
            let is_owned = |object: &Value| {
                let owners = object["metadata"]["ownerReferences"].as_array();
                owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *uid))
            };
            let owned = self.objects.iter().filter(|(_, object)| is_owned(object));
            gone.extend(owned.map(|(key, _)| key.clone()));
            self.applied.retain(|(applied, _), _| *applied != key);
            self.changed(key, Some(old), None);
        }
    }

    /// Stores an object at the next version.
    fn set(&mut self, key: Key, mut object: Value) -> Value {
        if key.plural == DEFINITIONS {
            object["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        }
        object["metadata"]["resourceVersion"] = json!((self.version + 1).to_string());
        let old = self.objects.insert(key.clone(), object.clone());
        self.changed(key, old, Some(object.clone()));
        object
    }

    fn changed(&mut self, key: Key, old: Option<Value>, new: Option<Value>) {
        self.version += 1;
        let version = self.version;
        let change = Change { version, key, old, new };
        self.watchers.retain(|watcher| watcher.notify(&change));
        self.changes.push(change);
    }

    /// Answers a request for objects of a kind.
    pub(super) fn answer(&mut self, kind: &Kind, target: &Target, asked: &Asked) -> Answer {
        let body = asked.body.clone();
        let Some(name) = &target.name else {
            return match asked.method.as_str() {
                "GET" => Ok((200, self.list(kind, target, &asked.query))),
                "POST" => self.create(kind, target, body),
                other => panic!("{other} of {}", asked.path),
            };
        };
        if target.subresource.as_ref().is_some_and(|part| part != "status" || !kind.has_status) {
            return Err(Failure::no_resource());
        }
        if asked.content == "application/apply-patch+yaml" {
            return self.apply(kind, target, asked);
        }
        let key = target.key(name);
        let old = self.objects.get(&key).cloned().ok_or_else(|| Failure::not_found(&key))?;
        match asked.method.as_str() {
            "GET" => Ok((200, old)),
            "DELETE" => self.delete(key, old, &body),
            "PUT" => self.update(kind, target, old, body, false),
            "PATCH" => {
                let new = patched(kind, &old, &asked.content, body)?;
                self.update(kind, target, old, new, true)
            }
            other => panic!("{other} of {}", asked.path),
        }
    }

    pub(super) fn create(&mut self, kind: &Kind, target: &Target, mut object: Value) -> Answer {
        if kind.kind == "SubjectAccessReview" {
            object["status"] = json!({"allowed": true});
            return Ok((201, object));
        }
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        let name = match (name.as_str(), metadata["generateName"].as_str()) {
            ("", Some(prefix)) => format!("{prefix}{:05}", self.version + 1),
            ("", None) => {
                let why = "metadata.name: Required value: name or generateName is required";
                return Err(Failure::invalid(&target.key(""), why));
            }
            (name, _) => name.to_owned(),
        };
        let key = target.key(&name);
        if self.objects.contains_key(&key) {
            let message = format!("{} {name:?} already exists", key.plural);
            return Err(Failure::new(409, "AlreadyExists", message));
        }
        if !object["metadata"]["resourceVersion"].is_null() {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Failure::new(500, "InternalError", message));
        }
        if let Some(object) = object.as_object_mut()
            && kind.has_status
        {
            object.remove("status");
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("deletionTimestamp");
            metadata.insert("name".to_owned(), json!(name));
            metadata.insert("creationTimestamp".to_owned(), json!(NOW));
            metadata.remove("uid");
        }
        if let Some(namespace) = &key.namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        let others = self.controller.as_ref().map(|react| react(&mut object));
        let stored = self.put(key, object);
        for other in others.into_iter().flatten() {
            self.put(Key::of(&other), other);
        }
        Ok((201, stored))
    }

    /// Returns a page of a list. All pages show the objects at the version of the first page.
    fn list(&self, kind: &Kind, target: &Target, query: &BTreeMap<String, String>) -> Value {
        let (version, after) = match query.get("continue").filter(|token| !token.is_empty()) {
            None => (self.version, None),
            Some(token) => {
                let (version, last) = token.split_once(' ').expect("a token of this server");
                let last = Target::of(last).expect("the path of an object");
                let key = last.key(last.name.as_deref().unwrap_or_default());
                (version.parse().expect("a version"), Some(key))
            }
        };
        let of_kind = self.objects.iter().filter(|(key, _)| target.contains(key));
        let mut objects: BTreeMap<&Key, &Value> = of_kind.collect();
        for change in self.changes.iter().rev().take_while(|change| change.version > version) {
            match change.old.as_ref().filter(|_| target.contains(&change.key)) {
                Some(old) => objects.insert(&change.key, old),
                None => objects.remove(&change.key),
            };
        }
        let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let rest = objects.range::<&Key, _>((from.as_ref(), Bound::Unbounded));
        let mut rest = rest.filter(|(_, object)| selects(query, object));
        let limit = query.get("limit").and_then(|limit| limit.parse().ok());
        let page: Vec<_> = rest.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let (Some((last, _)), Some(_)) = (page.last(), rest.next()) {
            metadata["continue"] = json!(format!("{version} {}", last.path()));
        }
        let mut items: Vec<Value> = page.into_iter().map(|(_, object)| (*object).clone()).collect();
        if !kind.is_custom {
            for item in items.iter_mut().filter_map(Value::as_object_mut) {
                item.retain(|field, _| !["apiVersion", "kind"].contains(&field.as_str()));
            }
        }
        json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.version,
            "metadata": metadata, "items": items})
    }

    fn delete(&mut self, key: Key, mut object: Value, options: &Value) -> Answer {
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != object["metadata"][field] {
                return Err(Failure::conflict(&key, &format!("{field} differs")));
            }
        }
        if !has_finalizers(&object) {
            self.remove(|one| *one == key);
        } else if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!(NOW);
            object = self.set(key, object);
        }
        Ok((200, object))
    }

    /// Stores the result of a write, limited to the fields that the write may change.
    pub(super) fn update(
        &mut self,
        kind: &Kind,
        target: &Target,
        old: Value,
        mut new: Value,
        is_patch: bool,
    ) -> Answer {
        let key = target.key(target.name.as_deref().unwrap_or_default());
        let given = new["metadata"]["resourceVersion"].clone();
        if !given.is_null() && given != old["metadata"]["resourceVersion"] {
            let why =
                "the object has been modified; please apply your changes to the latest version";
            return Err(Failure::conflict(&key, why));
        }
        // The status subresource changes only the status; the object itself changes the rest.
        if target.subresource.is_some() {
            let status = new["status"].take();
            let metadata = new["metadata"].take();
            new = old.clone();
            keep(&mut new, "status", &status);
            if !kind.protects_metadata() {
                new["metadata"] = metadata;
            } else if !kind.is_custom {
                keep(&mut new["metadata"], "uid", &metadata["uid"]);
            }
        } else if kind.has_status {
            keep(&mut new, "status", &old["status"]);
        }
        let uid = &new["metadata"]["uid"];
        if !uid.is_null() && *uid != old["metadata"]["uid"] {
            if is_patch {
                let why = format!("metadata.uid: Invalid value: {uid}: field is immutable");
                return Err(Failure::invalid(&key, &why));
            }
            return Err(Failure::conflict(&key, "the UID in the precondition differs"));
        }
        let times = ["creationTimestamp", "deletionTimestamp"];
        for field in ["name", "namespace", "uid", "resourceVersion"].into_iter().chain(times) {
            keep(&mut new["metadata"], field, &old["metadata"][field]);
        }
        for (plural, field) in &self.undefined {
            if key.plural == *plural
                && let Some(status) = new["status"].as_object_mut()
            {
                status.remove(*field);
            }
        }
        let deleting = !old["metadata"]["deletionTimestamp"].is_null();
        if deleting && finalizers(&new).any(|one| !finalizers(&old).any(|known| known == one)) {
            let why = "metadata.finalizers: Forbidden: no new finalizers can be added if the \
                       object is being deleted";
            return Err(Failure::invalid(&key, why));
        }
        if deleting && !has_finalizers(&new) {
            // The answer has the content of the request and the version that was read.
            self.remove(|one| *one == key);
        } else if new != old {
            new = self.set(key, new);
        }
        Ok((200, new))
    }
}

fn finalizers(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten()
}

fn has_finalizers(object: &Value) -> bool {
    finalizers(object).next().is_some()
}

/// Sets a field to a value, or removes it if the value is null.
fn keep(object: &mut Value, field: &str, value: &Value) {
    match value {
        Value::Null => object.as_object_mut().and_then(|object| object.remove(field)),
        value => Some(std::mem::replace(&mut object[field], value.clone())),
    };
}

fn patched(kind: &Kind, old: &Value, content: &str, patch: Value) -> Result<Value, Failure> {
    let mut new = old.clone();
    match content {
        "application/json-patch+json" => {
            let patch: json_patch::Patch = serde_json::from_value(patch).expect("a JSON patch");
            json_patch::patch(&mut new, &patch)
                .map_err(|_| Failure::new(422, "Invalid", UNFIT_PATCH))?;
        }
        "application/strategic-merge-patch+json" if kind.is_custom => {
            let message = "the body of the request was in an unknown format";
            return Err(Failure::new(415, "UnsupportedMediaType", message));
        }
        "application/strategic-merge-patch+json" => strategic(&mut new, patch),
        "application/merge-patch+json" => json_patch::merge(&mut new, &patch),
        other => panic!("a patch of a {}: {other:?}", kind.kind),
    }
    Ok(new)
}

/// A strategic merge as far as claims need it: conditions are merged by type, or the list is
/// replaced.
fn strategic(object: &mut Value, mut patch: Value) {
    let conditions = patch["status"].as_object_mut().and_then(|status| status.remove("conditions"));
    json_patch::merge(object, &patch);
    let Some(Value::Array(given)) = conditions else {
        return;
    };
    let known = object["status"]["conditions"].as_array().cloned();
    let mut merged = known.unwrap_or_default();
    if given.iter().any(|one| one["$patch"] == "replace") {
        merged.clear();
    }
    for one in given {
        if one["$patch"] == "replace" {
            continue;
        }
        merged.retain(|known| known["type"] != one["type"]);
        if one["$patch"] != "delete" {
            merged.push(one);
        }
    }
    object["status"]["conditions"] = json!(merged);
}
