//! An API server in memory, as far as the client's tests need one: discovery, lists with selectors
//! and pages, reads, creations, server-side applies and deletions. Fixed answers stand in for the
//! rest: logs, exec, failures.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body as Answer;
use futures::stream::pending;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Cluster;
use super::manifests::{MANAGER, ObjectKey, crds};

/// The kinds that every server has: the version, the kinds in namespaces, and the others. Those of
/// the snapshot API need their definitions.
const KINDS: [(&str, &str, &str); 10] = [
    ("v1", "Event PersistentVolumeClaim Pod ServiceAccount", "Namespace Node PersistentVolume"),
    ("apps/v1", "DaemonSet Deployment", ""),
    (
        "storage.k8s.io/v1",
        "",
        "CSIDriver CSINode StorageClass VolumeAttachment VolumeAttributesClass",
    ),
    ("rbac.authorization.k8s.io/v1", "Role RoleBinding", "ClusterRole ClusterRoleBinding"),
    ("authorization.k8s.io/v1", "", "SubjectAccessReview"),
    ("networking.k8s.io/v1", "NetworkPolicy", ""),
    ("flowcontrol.apiserver.k8s.io/v1", "", "FlowSchema"),
    ("coordination.k8s.io/v1", "Lease", ""),
    (
        "admissionregistration.k8s.io/v1",
        "",
        "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
    ),
    ("apiextensions.k8s.io/v1", "", "CustomResourceDefinition"),
];

/// What a controller does with a new object: it completes it, and makes others.
type Controller = Box<dyn Fn(&mut Value) -> Vec<Value> + Send>;

#[derive(Default)]
struct State {
    objects: BTreeMap<ObjectKey, Value>,
    /// The last `resourceVersion`.
    version: u64,
    /// Fixed answers by path.
    answers: BTreeMap<String, (u16, String)>,
    /// Verbs and paths that the person may not use.
    forbidden: Vec<(String, String)>,
    controller: Option<Controller>,
    /// The minor version, if it is not 36.
    minor: Option<u32>,
    /// The size of a page, if it is smaller than the client's.
    page: Option<usize>,
    /// `GET PATH?QUERY`.
    requests: Vec<String>,
    /// `PATCH Role hostloop/hostloop`.
    writes: Vec<String>,
}

/// The server. Clones share it.
#[derive(Clone, Default)]
pub(super) struct FakeApi(Arc<Mutex<State>>);

impl FakeApi {
    /// Stores an object, as if another client had written it.
    pub(super) fn put(&self, object: Value) {
        self.0.lock().put(object);
    }

    /// Stores the definitions of the snapshot API.
    pub(super) fn define_snapshots(&self) {
        crds().into_iter().for_each(|definition| self.put(definition));
    }

    /// Stores an object at its path, which says kind, namespace and name.
    pub(super) fn set(&self, path: &str, object: Value) {
        let mut state = self.0.lock();
        let object = state.at(path, object);
        state.put(object);
    }

    /// Makes these objects the only ones of a collection.
    pub(super) fn items(&self, path: &str, items: Value) {
        let mut state = self.0.lock();
        let collection = ObjectKey::of(&state.at(path, json!({})));
        state.objects.retain(|key, _| !is_in(key, &collection));
        for item in items.as_array().expect("an array") {
            let object = state.at(path, item.clone());
            state.put(object);
        }
    }

    /// Fixes the answer to all requests for a path.
    pub(super) fn answer(&self, path: &str, code: u16, body: Value) {
        self.text(path, code, &body.to_string());
    }

    /// Fixes the answer to a text.
    pub(super) fn text(&self, path: &str, code: u16, body: &str) {
        self.0.lock().answers.insert(path.to_owned(), (code, body.to_owned()));
    }

    /// Makes it a server of Kubernetes 1.`minor`.
    pub(super) fn minor(&self, minor: u32) {
        self.0.lock().minor = Some(minor);
    }

    /// Takes a right from the person: a verb, on an object or on a collection and its objects.
    pub(super) fn forbid(&self, verb: &str, path: &str) {
        self.0.lock().forbidden.push((verb.to_owned(), path.to_owned()));
    }

    /// Runs a controller for each object that is created.
    pub(super) fn on_create(&self, react: impl Fn(&mut Value) -> Vec<Value> + Send + 'static) {
        self.0.lock().controller = Some(Box::new(react));
    }

    /// Limits the size of a page.
    pub(super) fn page(&self, size: usize) {
        self.0.lock().page = Some(size);
    }

    /// All objects of a kind.
    pub(super) fn all(&self, kind: &str) -> Vec<Value> {
        let state = self.0.lock();
        state.objects.values().filter(|object| object["kind"] == kind).cloned().collect()
    }

    /// All requests, as `GET PATH?QUERY`.
    pub(super) fn requests(&self) -> Vec<String> {
        self.0.lock().requests.clone()
    }

    /// The writes since the last look, as `PATCH Role hostloop/hostloop`.
    pub(super) fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().writes)
    }

    /// A client of the server.
    pub(super) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
                let (code, answer) =
                    server.0.lock().answer(head.method.as_str(), path, query, body);
                // A watch without changes: an answer that does not end.
                let answer = match code == 200 && query.contains("watch=true") {
                    true => Answer::from_stream(pending::<Result<Vec<u8>, Infallible>>()),
                    false => Answer::from(answer),
                };
                let response = Response::builder().status(code).body(answer);
                Ok::<_, Infallible>(response.expect("a response"))
            }
        });
        Client::new(service, "default")
    }

    /// The server as the cluster of a command, with the namespace `demo`.
    pub(super) fn cluster(&self) -> Cluster {
        Cluster {
            client: self.client(),
            context: Some("test".to_owned()),
            namespace: "demo".to_owned(),
            system_namespace: "hostloop".to_owned(),
            driver_name: "hostloop.csi.dev".to_owned(),
        }
    }
}

/// A kind that is served.
struct Kind {
    version: String,
    kind: String,
    plural: String,
    is_namespaced: bool,
}

impl Kind {
    /// A kind with the plural that its name suggests.
    fn of(version: &str, kind: &str, is_namespaced: bool) -> Kind {
        let word = kind.to_lowercase();
        let plural = match (word.strip_suffix('y'), word.ends_with('s')) {
            (Some(stem), _) => format!("{stem}ies"),
            (None, true) => format!("{word}es"),
            (None, false) => format!("{word}s"),
        };
        Kind { version: version.to_owned(), kind: kind.to_owned(), plural, is_namespaced }
    }
}

/// What a path names. Parts that it does not have are empty.
#[derive(Default)]
struct Target {
    version: String,
    namespace: String,
    plural: String,
    name: String,
    subresource: String,
}

impl Target {
    fn of(path: &str) -> Option<Target> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ((*version).to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let part = |n: usize| rest.get(n).copied().unwrap_or_default().to_owned();
        let (plural, name, subresource) = (part(0), part(1), part(2));
        Some(Target { version, namespace: namespace.to_owned(), plural, name, subresource })
    }

    /// The verb that the server checks for a request.
    fn verb(&self, method: &str) -> &'static str {
        match (method, self.subresource.as_str()) {
            ("POST", _) | (_, "exec") => "create",
            ("PATCH", _) => "patch",
            ("DELETE", _) => "delete",
            _ if self.name.is_empty() => "list",
            _ => "get",
        }
    }
}

/// True if an object is in a collection. Without a namespace, a collection has the objects
/// of all namespaces.
fn is_in(key: &ObjectKey, collection: &ObjectKey) -> bool {
    (&key.version, &key.kind) == (&collection.version, &collection.kind)
        && (collection.namespace.is_empty() || key.namespace == collection.namespace)
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": message, "metadata": {}});
    (code, status)
}

impl State {
    /// The kinds that are served.
    fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for (version, namespaced, others) in KINDS {
            kinds.extend(namespaced.split_whitespace().map(|kind| Kind::of(version, kind, true)));
            kinds.extend(others.split_whitespace().map(|kind| Kind::of(version, kind, false)));
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let definitions =
            self.objects.values().filter(|one| one["kind"] == "CustomResourceDefinition");
        for spec in definitions.map(|definition| &definition["spec"]) {
            for version in spec["versions"].as_array().into_iter().flatten() {
                let version = format!("{}/{}", text(&spec["group"]), text(&version["name"]));
                let kind = text(&spec["names"]["kind"]);
                kinds.push(Kind::of(&version, &kind, spec["scope"] == "Namespaced"));
            }
        }
        kinds
    }

    /// The object with kind, namespace and name of a path.
    fn named(&self, target: &Target, mut object: Value) -> Option<Value> {
        let mut kinds = self.kinds().into_iter();
        let kind = kinds.find(|k| k.version == target.version && k.plural == target.plural)?;
        object["apiVersion"] = json!(kind.version);
        object["kind"] = json!(kind.kind);
        for (field, text) in [("namespace", &target.namespace), ("name", &target.name)] {
            if !text.is_empty() {
                object["metadata"][field] = json!(text);
            }
        }
        Some(object)
    }

    /// The object with the names of a path.
    fn at(&self, path: &str, object: Value) -> Value {
        let target = Target::of(path).expect("a path");
        self.named(&target, object).expect("a served kind")
    }

    fn put(&mut self, mut object: Value) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.version));
        }
        if object["kind"] == "CustomResourceDefinition" {
            object["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        }
        self.objects.insert(ObjectKey::of(&object), object.clone());
        object
    }

    fn answer(&mut self, method: &str, path: &str, query: &str, body: Value) -> (u16, String) {
        let mark = if query.is_empty() { "" } else { "?" };
        self.requests.push(format!("{method} {path}{mark}{query}"));
        let target = Target::of(path).unwrap_or_default();
        let verb = target.verb(method);
        let is_forbidden = |(forbidden, at): &(String, String)| {
            forbidden == verb
                && (path == at || path.rsplit_once('/').is_some_and(|(parent, _)| parent == at))
        };
        let (code, answer) = match self.answers.get(path) {
            _ if self.forbidden.iter().any(is_forbidden) => {
                let resource = [&*target.plural, &*target.subresource].join("/");
                let resource = resource.trim_end_matches('/');
                let message = format!("User \"u\" cannot {verb} resource \"{resource}\"");
                failure(403, "Forbidden", &message)
            }
            Some((code, text)) => return (*code, text.clone()),
            None if path == "/version" => (200, version(self.minor.unwrap_or(36))),
            None if target.plural.is_empty() => self.discovery(&target.version),
            None => match self.named(&target, body) {
                Some(object) if target.subresource.is_empty() => {
                    self.carry_out(verb, query, object)
                }
                _ => failure(404, "NotFound", path),
            },
        };
        (code, answer.to_string())
    }

    /// Carries out a request for a kind that is served. `object` is its body with the path's names.
    fn carry_out(&mut self, verb: &str, query: &str, object: Value) -> (u16, Value) {
        let key = ObjectKey::of(&object);
        let missing = || failure(404, "NotFound", &key.to_string());
        let before = self.objects.get(&key).cloned();
        match verb {
            "list" => self.list(&key, query),
            "get" => before.map_or_else(missing, |object| (200, object)),
            "create" => {
                self.writes.push(format!("POST {key}"));
                self.create(object)
            }
            "patch" => {
                self.writes.push(format!("PATCH {key}"));
                self.apply(before, query.contains("force=true"), object)
            }
            _ => {
                self.writes.push(format!("DELETE {key}"));
                before.map_or_else(missing, |object| self.delete(&key, object))
            }
        }
    }

    fn discovery(&self, version: &str) -> (u16, Value) {
        let kinds = self.kinds().into_iter().filter(|kind| kind.version == version);
        let resources: Vec<Value> = kinds
            .map(|kind| {
                json!({"name": kind.plural, "kind": kind.kind, "namespaced": kind.is_namespaced,
                    "singularName": "", "verbs": ["get", "list", "patch", "delete"]})
            })
            .collect();
        match resources.is_empty() {
            true => failure(404, "NotFound", version),
            false => (200, json!({"groupVersion": version, "resources": resources})),
        }
    }

    fn list(&self, collection: &ObjectKey, query: &str) -> (u16, Value) {
        let query = query.replace("%2F", "/").replace("%3D", "=");
        let parameter = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let label = parameter("labelSelector").and_then(|label| label.split_once('='));
        let field = parameter("fieldSelector").and_then(|field| field.split_once('='));
        let is_selected = |object: &&Value| {
            let has_label = |(key, value)| object["metadata"]["labels"][key] == value;
            let has_field = |(path, value): (&str, &str)| {
                path.split('.').fold(*object, |part, field| &part[field]) == value
            };
            label.is_none_or(has_label) && field.is_none_or(has_field)
        };
        let found = self.objects.iter().filter(|(key, _)| is_in(key, collection));
        let found = found.map(|(_, object)| object).filter(is_selected);
        let mut items: Vec<Value> = found.cloned().collect();
        // As from a real one, items have no kind.
        for fields in items.iter_mut().filter_map(Value::as_object_mut) {
            fields.retain(|field, _| !["apiVersion", "kind"].contains(&field.as_str()));
        }
        let from = parameter("continue").and_then(|token| token.parse().ok()).unwrap_or(0);
        let end = items.len().min(from + self.page.unwrap_or(usize::MAX - from));
        let next = if end < items.len() { end.to_string() } else { String::new() };
        let metadata = json!({"continue": next, "resourceVersion": self.version.to_string()});
        (200, json!({"metadata": metadata, "items": items[from..end]}))
    }

    fn create(&mut self, mut object: Value) -> (u16, Value) {
        let others = self.controller.as_ref().map(|react| react(&mut object)).unwrap_or_default();
        let stored = self.put(object);
        others.into_iter().for_each(|other| _ = self.put(other));
        (201, stored)
    }

    fn apply(&mut self, before: Option<Value>, force: bool, mut object: Value) -> (u16, Value) {
        object["metadata"]["managedFields"] = json!([{"manager": MANAGER}]);
        let Some(before) = before else {
            return (201, self.put(object));
        };
        if !force && before["metadata"]["managedFields"].is_null() {
            return failure(409, "Conflict", "conflict with \"other\": .spec");
        }
        let plain = |object: &Value| {
            let mut object = object.clone();
            let metadata = object["metadata"].as_object_mut().expect("metadata");
            for field in ["uid", "resourceVersion", "managedFields"] {
                metadata.remove(field);
            }
            object.as_object_mut().expect("an object").remove("status");
            object
        };
        match plain(&before) == plain(&object) {
            true => (200, before),
            false => {
                object["metadata"]["uid"] = before["metadata"]["uid"].clone();
                (200, self.put(object))
            }
        }
    }

    /// Removes an object and what it owns, if no finalizer keeps it.
    fn delete(&mut self, key: &ObjectKey, object: Value) -> (u16, Value) {
        if object["metadata"]["finalizers"].is_null() {
            self.objects.remove(key);
            let uid = &object["metadata"]["uid"];
            self.objects.retain(|_, one| one["metadata"]["ownerReferences"][0]["uid"] != *uid);
        }
        (200, object)
    }
}

fn version(minor: u32) -> Value {
    json!({"major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.0"),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
        "platform": ""})
}
