//! Applies the requests of clients to the stored objects.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Answer;
use super::failure::Failure;
use super::kinds::Kind;
use super::path::{Key, Target};
use super::request::RecordedRequest;
use super::rules;
use super::store::{Store, now, time_in};

/// The message for a JSON patch that can't be applied. The answer has no reason.
const UNFIT_PATCH: &str = "the server rejected our request due to an error in our request";

impl Store {
    /// Answers a request for objects of a kind.
    pub(super) fn answer(
        &mut self,
        kind: &Kind,
        target: &Target,
        request: &RecordedRequest,
    ) -> Answer {
        let body = request.body.clone();
        let Some(name) = &target.name else {
            return match request.method.as_str() {
                "GET" => self.list(kind, target, &request.query),
                "POST" if request.query.contains_key("dryRun") => {
                    self.try_create(kind, target, body)
                }
                "POST" => self.create(kind, target, body),
                other => panic!("{other} of {}", request.path),
            };
        };
        let key = target.key(name);
        match target.subresource.as_deref() {
            Some("binding") if kind.kind == "Pod" => return self.assign(&key, &body),
            Some("finalize") if kind.kind == "Namespace" => return self.finalize(&key, &body),
            Some(part) if part != "status" || !kind.has_status => {
                return Err(Failure::no_resource());
            }
            _ => {}
        }
        if request.content == "application/apply-patch+yaml" {
            return self.apply(kind, target, request);
        }
        let old = self
            .objects
            .get(&key)
            .cloned()
            .ok_or_else(|| Failure::not_found(&key))?;
        match request.method.as_str() {
            "GET" => Ok((200, Value::clone(&old))),
            "DELETE" => self.delete(kind, key, Value::clone(&old), request),
            "PUT" => self.update(kind, target, &old, body, false),
            "PATCH" => {
                let new = patched(kind, &old, &request.content, body)?;
                self.update(kind, target, &old, new, true)
            }
            other => panic!("{other} of {}", request.path),
        }
    }

    /// Checks a create, and makes nothing: a dry run.
    fn try_create(&self, kind: &Kind, target: &Target, object: Value) -> Answer {
        let key = target.key(object["metadata"]["name"].as_str().unwrap_or_default());
        self.admit(&key)?;
        if self.objects.contains_key(&key) {
            return Err(already_exists(&key));
        }
        if self.is_cluster {
            rules::validate(kind, None, &object).map_err(|why| Failure::invalid(&key, &why))?;
        }
        Ok((201, object))
    }

    pub(super) fn create(&mut self, kind: &Kind, target: &Target, mut object: Value) -> Answer {
        if let Some(status) = self.reviews.status(&kind.kind, &object["spec"]) {
            object["status"] = status;
            return Ok((201, object));
        }
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        let name = match (name.as_str(), metadata["generateName"].as_str()) {
            ("", Some(prefix)) => format!("{prefix}{:05}", self.next_serial()),
            ("", None) => {
                let why = "metadata.name: Required value: name or generateName is required";
                return Err(Failure::invalid(&target.key(""), why));
            }
            (name, _) => name.to_owned(),
        };
        let key = target.key(&name);
        self.admit(&key)?;
        if self.objects.contains_key(&key) {
            return Err(already_exists(&key));
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
            for field in [
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "uid",
                "generation",
            ] {
                metadata.remove(field);
            }
            metadata.insert("name".to_owned(), json!(name));
            metadata.insert("creationTimestamp".to_owned(), json!(now()));
            if kind.has_generation() {
                metadata.insert("generation".to_owned(), json!(1));
            }
        }
        if let Some(namespace) = &key.namespace {
            object["metadata"]["namespace"] = json!(&**namespace);
        }
        if self.is_cluster {
            let is_claim = kind.kind == "PersistentVolumeClaim";
            let default_class = is_claim.then(|| self.default_class()).flatten();
            rules::complete(kind, &mut object, default_class.as_deref());
            rules::validate(kind, None, &object).map_err(|why| Failure::invalid(&key, &why))?;
        }
        let others = self.controller.as_ref().map(|react| react(&mut object));
        let stored = self.put(key, object);
        for other in others.into_iter().flatten() {
            self.put(Key::of(&other), other);
        }
        Ok((201, stored))
    }

    /// Refuses new objects in a namespace that ends, or, in a cluster, that is missing.
    fn admit(&self, key: &Key) -> Result<(), Failure> {
        let Some(namespace) = key.namespace.as_deref() else {
            return Ok(());
        };
        match self.objects.get(&namespace_key(namespace)) {
            None if self.is_cluster => Err(Failure::not_found(&namespace_key(namespace))),
            Some(object) if !object["metadata"]["deletionTimestamp"].is_null() => {
                Err(Failure::terminating(key, namespace))
            }
            _ => Ok(()),
        }
    }

    /// Refuses the growth of a bound claim if its class does not allow it.
    fn admit_growth(
        &self,
        kind: &Kind,
        key: &Key,
        old: &Value,
        new: &Value,
    ) -> Result<(), Failure> {
        if kind.kind != "PersistentVolumeClaim" || !rules::grows(old, new) {
            return Ok(());
        }
        let classes = Target::of("/apis/storage.k8s.io/v1/storageclasses").expect("a path");
        let class = new["spec"]["storageClassName"].as_str().unwrap_or_default();
        let class = self.objects.get(&classes.key(class));
        if class.is_some_and(|class| class["allowVolumeExpansion"] == true) {
            return Ok(());
        }
        let message = format!(
            "{} {:?} is forbidden: only dynamically provisioned pvc can be resized and the \
             storageclass that provisions the pvc must support resize",
            key.plural, key.name
        );
        Err(Failure::new(403, "Forbidden", message))
    }

    /// The newest class that claims without a class get.
    fn default_class(&self) -> Option<String> {
        let target = Target::of("/apis/storage.k8s.io/v1/storageclasses")?;
        let is_default = |class: &Value| {
            let key = "storageclass.kubernetes.io/is-default-class";
            class["metadata"]["annotations"][key] == "true"
        };
        let classes = self
            .objects_of(&target)
            .filter(|(_, class)| is_default(class));
        let newest = classes.max_by_key(|(key, class)| {
            let created = class["metadata"]["creationTimestamp"]
                .as_str()
                .unwrap_or_default();
            (created.to_owned(), std::cmp::Reverse(key.name.clone()))
        });
        newest.map(|(key, _)| key.name.to_string())
    }

    fn delete(
        &mut self,
        kind: &Kind,
        key: Key,
        mut object: Value,
        request: &RecordedRequest,
    ) -> Answer {
        let options = &request.body;
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != object["metadata"][field] {
                return Err(Failure::conflict(&key, &format!("{field} differs")));
            }
        }
        let option = |name: &str| {
            let given = options[name].as_str().map(str::to_owned);
            given.or_else(|| request.query.get(name).cloned())
        };
        let is_first = object["metadata"]["deletionTimestamp"].is_null();
        let waits_for = match option("propagationPolicy").as_deref() {
            Some("Foreground") => Some("foregroundDeletion"),
            Some("Orphan") => Some("orphan"),
            _ => None,
        };
        if let Some(finalizer) = waits_for.filter(|_| is_first) {
            let finalizers = object["metadata"]["finalizers"].as_array().cloned();
            let mut finalizers = finalizers.unwrap_or_default();
            finalizers.push(json!(finalizer));
            object["metadata"]["finalizers"] = json!(finalizers);
        }
        let grace = options["gracePeriodSeconds"].as_i64().or_else(|| {
            request
                .query
                .get("gracePeriodSeconds")
                .and_then(|seconds| seconds.parse().ok())
        });
        let grace = if self.is_cluster {
            grace_period(kind, &object, grace)
        } else {
            0
        };
        let had = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
        if grace == 0 && !has_finalizers(&object) && !is_namespace_in_use(kind, &object) {
            self.remove(&key);
        } else if is_first || had.is_some_and(|had| grace < had) {
            object["metadata"]["deletionTimestamp"] = json!(time_in(grace));
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            if let Some(generation) = object["metadata"]["generation"].as_i64() {
                object["metadata"]["generation"] = json!(generation + 1);
            }
            if kind.kind == "Namespace" {
                object["status"]["phase"] = json!("Terminating");
            }
            object = self.set(key, object);
        }
        Ok((200, object))
    }

    /// Stores the result of a write, limited to the fields that the write may change.
    pub(super) fn update(
        &mut self,
        kind: &Kind,
        target: &Target,
        old: &Value,
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
            return Err(Failure::conflict(
                &key,
                "the UID in the precondition differs",
            ));
        }
        let set_by_server = [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
        ];
        let of_deletion = [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ];
        for field in set_by_server.into_iter().chain(of_deletion) {
            keep(&mut new["metadata"], field, &old["metadata"][field]);
        }
        for (plural, field) in &self.undefined {
            if *key.plural == **plural
                && let Some(status) = new["status"].as_object_mut()
            {
                status.remove(*field);
            }
        }
        // Without the gate, a server keeps only a health that is there already.
        if *key.plural == *"persistentvolumeclaims"
            && !self.has_volume_health
            && old["status"]["healthStatus"].is_null()
            && let Some(status) = new["status"].as_object_mut()
        {
            status.remove("healthStatus");
        }
        let deleting = !old["metadata"]["deletionTimestamp"].is_null();
        if deleting && finalizers(&new).any(|one| !finalizers(old).any(|known| known == one)) {
            let why = "metadata.finalizers: Forbidden: no new finalizers can be added if the \
                       object is being deleted";
            return Err(Failure::invalid(&key, why));
        }
        if self.is_cluster {
            rules::write_quantities(kind, &mut new);
            if target.subresource.is_none() {
                self.admit_growth(kind, &key, old, &new)?;
                let problem = rules::validate(kind, Some(old), &new);
                problem.map_err(|why| Failure::invalid(&key, &why))?;
            }
        }
        if kind.has_generation() && has_new_content(old, &new) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
            new["metadata"]["generation"] = json!(generation + 1);
        }
        let waits = new["metadata"]["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap_or(0)
            > 0
            || is_namespace_in_use(kind, &new);
        if deleting && !has_finalizers(&new) && !waits {
            // The answer has the content of the request and the version that was read.
            self.remove(&key);
        } else if new != *old {
            new = self.set(key, new);
        }
        Ok((200, new))
    }

    /// Assigns a pod to a node, as the scheduler does.
    fn assign(&mut self, key: &Key, binding: &Value) -> Answer {
        let pod = self
            .objects
            .get(key)
            .ok_or_else(|| Failure::not_found(key))?;
        let uid = &binding["metadata"]["uid"];
        if !uid.is_null() && *uid != pod["metadata"]["uid"] {
            return Err(Failure::conflict(
                key,
                "the UID in the precondition differs",
            ));
        }
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            let why = format!(
                "pod {} is being deleted, cannot be assigned to a host",
                key.name
            );
            return Err(Failure::conflict(key, &why));
        }
        if let Some(node) = pod["spec"]["nodeName"]
            .as_str()
            .filter(|node| !node.is_empty())
        {
            let why = format!("pod {} is already assigned to node {node:?}", key.name);
            return Err(Failure::conflict(key, &why));
        }
        let mut pod = Value::clone(pod);
        pod["spec"]["nodeName"] = binding["target"]["name"].clone();
        let mut conditions = pod["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions.retain(|one| one["type"] != "PodScheduled");
        conditions.push(json!({"type": "PodScheduled", "status": "True",
            "lastProbeTime": null, "lastTransitionTime": now()}));
        pod["status"]["conditions"] = json!(conditions);
        self.set(key.clone(), pod);
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "code": 201});
        Ok((201, status))
    }

    /// Sets a namespace's own finalizers, and removes it when it is deleted and has none.
    fn finalize(&mut self, key: &Key, body: &Value) -> Answer {
        let old = self
            .objects
            .get(key)
            .ok_or_else(|| Failure::not_found(key))?;
        let given = &body["metadata"]["resourceVersion"];
        if !given.is_null() && *given != old["metadata"]["resourceVersion"] {
            return Err(Failure::conflict(key, "the object has been modified"));
        }
        let mut new = Value::clone(old);
        keep(&mut new["spec"], "finalizers", &body["spec"]["finalizers"]);
        let is_done = !new["metadata"]["deletionTimestamp"].is_null()
            && !has_finalizers(&new)
            && new["spec"]["finalizers"]
                .as_array()
                .is_none_or(Vec::is_empty);
        if is_done {
            self.remove(key);
        } else if new != **old {
            new = self.set(key.clone(), new);
        }
        Ok((200, new))
    }
}

fn already_exists(key: &Key) -> Failure {
    let message = format!("{} {:?} already exists", key.plural, key.name);
    Failure::new(409, "AlreadyExists", message)
}

/// The key of a namespace.
fn namespace_key(name: &str) -> Key {
    Key {
        version: Arc::from("v1"),
        plural: Arc::from("namespaces"),
        namespace: None,
        name: name.into(),
    }
}

/// The seconds that an object is left after a request to delete it.
fn grace_period(kind: &Kind, object: &Value, given: Option<i64>) -> i64 {
    let is_over = ["Succeeded", "Failed"]
        .iter()
        .any(|phase| object["status"]["phase"] == *phase);
    let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
    if kind.kind != "Pod" || is_over || node.is_empty() {
        return 0;
    }
    let own = object["spec"]["terminationGracePeriodSeconds"].as_i64();
    given.or(own).unwrap_or(30).max(0)
}

/// True for a namespace until its content is known to be gone.
fn is_namespace_in_use(kind: &Kind, object: &Value) -> bool {
    kind.kind == "Namespace"
        && object["spec"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty())
}

/// True if more than metadata and status has changed.
fn has_new_content(old: &Value, new: &Value) -> bool {
    let fields = |object: &Value| {
        let fields = object.as_object().into_iter().flatten();
        let content = fields.filter(|(field, _)| !["metadata", "status"].contains(&field.as_str()));
        content
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect::<Vec<_>>()
    };
    fields(old) != fields(new)
}

fn finalizers(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
}

fn has_finalizers(object: &Value) -> bool {
    finalizers(object).next().is_some()
}

/// Sets a field to a value, or removes it if the value is null.
fn keep(object: &mut Value, field: &str, value: &Value) {
    match value {
        Value::Null => object
            .as_object_mut()
            .and_then(|object| object.remove(field)),
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
    let conditions = patch["status"]
        .as_object_mut()
        .and_then(|status| status.remove("conditions"));
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
