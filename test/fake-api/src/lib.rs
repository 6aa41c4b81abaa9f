//! A Kubernetes API server in memory, for tests of its clients.
//!
//! It answers as kube-apiserver does where hostloop depends on it: kinds, versions, preconditions,
//! finalizers, selectors, pages, watches, status subresources and server-side applies.
//! [`conformance`] has the cases that run both here and on a real API server. [`Fault`]s stand in
//! for failures, and fixed answers ([`FakeApi::answer`]) for all the rest, such as logs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};

use path::{Key, Target};
use store::{Failure, Store};

mod apply;
pub mod conformance;
mod kinds;
mod path;
mod select;
mod store;
mod watch;

type Answer = Result<(u16, Value), Failure>;

/// A request as the server received it.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// `GET`, `POST`, …; empty for a note.
    method: String,
    /// The path of the request, or the text of a note. The path of a watch ends with `?watch`.
    path: String,
    /// The path and the parameters after it, as sent.
    uri: String,
    /// The parameters after the path.
    query: BTreeMap<String, String>,
    /// The body, or null.
    body: Value,
    /// The content type of the body.
    content: String,
    /// True if the client accepts a list of metadata instead of objects.
    metadata: bool,
}

impl Asked {
    /// The path without its group and version, as `ns/kind/name`. A create has the name from its
    /// body.
    fn short(&self) -> String {
        let Some(target) = Target::of(&self.path) else { return self.path.clone() };
        let created = self.body["metadata"]["name"].as_str().filter(|_| self.method == "POST");
        let name = target.name.or(created.map(str::to_owned));
        let parts = [target.namespace, Some(target.plural), name, target.subresource];
        parts.into_iter().flatten().collect::<Vec<_>>().join("/")
    }

    fn is_watch(&self) -> bool {
        self.path.ends_with("?watch")
    }

    /// The list with its selectors: `pods fieldSelector=a=b`, or `metadata of pods`.
    fn list(&self) -> Option<String> {
        let target = Target::of(&self.path)?;
        if self.method != "GET" || self.is_watch() || target.name.is_some() {
            return None;
        }
        let selectors = ["labelSelector", "fieldSelector"];
        let given = selectors.iter().filter_map(|selector| {
            let value = self.query.get(*selector)?;
            Some(format!(" {selector}={value}"))
        });
        let part = if self.metadata { "metadata of " } else { "" };
        Some(format!("{part}{}{}", target.plural, given.collect::<String>()))
    }

    /// The request as `GET path` or `PATCH path <body>`, or the note.
    fn line(self) -> String {
        match self.method.as_str() {
            "" => self.path,
            "GET" => format!("GET {}", self.short()),
            method => format!("{method} {} {}", self.short(), unbound(self.body)),
        }
    }

    /// The write as `name`, `name/status` or `create ns/kind`.
    fn write(&self) -> String {
        if self.method == "POST" {
            return format!("create {}", self.short());
        }
        let target = Target::of(&self.path);
        let target = target.expect("the path of an object");
        let name = target.name.unwrap_or_default();
        let status = if target.subresource.is_some() { "/status" } else { "" };
        format!("{name}{status}")
    }
}

/// A failure of a request.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The request fails with this code, and changes nothing.
    Refuse(u16),
    /// The request gets no answer, and changes nothing.
    Hang,
    /// The request takes this long.
    Delay(Duration),
}

struct Rule {
    /// All methods if empty.
    methods: &'static [&'static str],
    /// The end of the path of a request, or the plural of its kind.
    path: String,
    /// The number of requests it applies to; all if `None`.
    left: Option<usize>,
    fault: Fault,
}

const WRITES: &[&str] = &["POST", "PUT", "PATCH", "DELETE"];

#[derive(Default)]
struct State {
    store: Store,
    /// Fixed answers by path.
    answers: BTreeMap<String, (u16, String)>,
    asked: Vec<Asked>,
    rules: Vec<Rule>,
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

    /// Returns the object with a path that ends with `path`.
    pub fn get(&self, path: &str) -> Option<Value> {
        let state = self.0.lock();
        let mut objects = state.store.objects.iter();
        let found = objects.find(|(key, _)| key.path().ends_with(path));
        found.map(|(_, object)| object.clone())
    }

    /// Returns all objects of a kind (by plural).
    pub fn all(&self, plural: &str) -> Vec<Value> {
        let state = self.0.lock();
        let objects = state.store.objects.iter();
        let of_kind = objects.filter(|(key, _)| key.plural == plural);
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    /// Removes the objects with paths that end with `path`, even with finalizers.
    pub fn take(&self, path: &str) {
        self.0.lock().store.remove(|key| key.path().ends_with(path));
    }

    /// Refuses the next write to a path with this suffix. A suffix that ends with `?watch` applies
    /// to watches.
    pub fn refuse(&self, path: &str, code: u16) {
        let methods = if path.ends_with("?watch") { &["GET"] } else { WRITES };
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
        self.0.lock().rules.push(Rule { methods, path, left, fault });
    }

    /// Fixes the answer to all requests for a path.
    pub fn answer(&self, path: &str, code: u16, body: impl ToString) {
        self.0.lock().answers.insert(path.to_owned(), (code, body.to_string()));
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

    /// Removes all faults.
    pub fn heal(&self) {
        self.0.lock().rules.clear();
    }

    /// Ends all watches, as a server that goes away.
    pub fn end_watches(&self) {
        self.0.lock().store.watchers.clear();
    }

    /// Drops a status field of a kind (by plural), like a CRD without that field.
    pub fn undefine(&self, plural: &'static str, field: &'static str) {
        self.0.lock().store.undefined.push((plural, field));
    }

    /// Stops to serve a kind (by plural), like an older API server or one without the definition.
    pub fn lack(&self, plural: &'static str) {
        self.0.lock().store.lacking.insert(plural);
    }

    /// Serves a kind again.
    pub fn serve(&self, plural: &'static str) {
        self.0.lock().store.lacking.remove(plural);
    }

    /// Logs a note between the requests, such as a call to a driver.
    pub fn note(&self, path: String) {
        self.0.lock().asked.push(Asked { path, ..Asked::default() });
    }

    /// All requests since the last look as they were sent: `GET PATH?QUERY`.
    pub fn requests(&self) -> Vec<String> {
        let all = self.0.lock().taken(|_| true);
        all.iter().map(|asked| format!("{} {}", asked.method, asked.uri)).collect()
    }

    /// All requests and notes since the last look, except lists and watches.
    pub fn happened(&self) -> Vec<String> {
        let is_one = |asked: &Asked| asked.list().is_none() && !asked.is_watch();
        let all = self.0.lock().taken(is_one);
        all.into_iter().map(Asked::line).collect()
    }

    /// All requests and notes since the last look, without bodies: `POST ns/kind/name`.
    pub fn log(&self) -> Vec<String> {
        let all = self.0.lock().taken(|_| true);
        let entry = |asked: &Asked| match asked.method.as_str() {
            "" => asked.path.clone(),
            method => format!("{method} {}", asked.short()),
        };
        all.iter().map(entry).collect()
    }

    /// What was written to since the last look: `name[/status]`. The objects show what changed.
    pub fn writes(&self) -> Vec<String> {
        let is_write = |asked: &Asked| WRITES.contains(&asked.method.as_str());
        let writes = self.0.lock().taken(is_write);
        writes.iter().map(Asked::write).collect()
    }

    /// The lists since the last look, with their selectors: `pods fieldSelector=a=b`.
    pub fn lists(&self) -> Vec<String> {
        let lists = self.0.lock().taken(|asked| asked.list().is_some());
        lists.iter().filter_map(Asked::list).collect()
    }

    /// Creates a client of the server.
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.respond(request).await) }
        });
        Client::new(service, "default")
    }

    async fn respond(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let bytes = body.collect_bytes().await.expect("a body");
        let query = head.uri.query().unwrap_or_default();
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let is_watch = query.get("watch").is_some_and(|watch| watch == "true");
        let suffix = if is_watch { "?watch" } else { "" };
        let header = |name| {
            let value = head.headers.get(name);
            value.map_or("", |value| value.to_str().expect("a text"))
        };
        let asked = Asked {
            method: head.method.to_string(),
            path: format!("{}{suffix}", head.uri.path()),
            uri: head.uri.to_string(),
            query,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            content: header("content-type").to_owned(),
            metadata: header("accept").contains("as=PartialObjectMetadataList"),
        };
        let fault = {
            let mut state = self.0.lock();
            state.asked.push(asked.clone());
            state.fault(&asked)
        };
        match fault {
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Refuse(code)) => return response(Err(Failure::scripted(code, &asked))),
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            None => {}
        }
        let mut state = self.0.lock();
        if let Some((code, text)) = state.answers.get(&asked.path) {
            return fixed(*code, text.clone());
        }
        match header("impersonate-user") {
            "" => {}
            // A user without a role.
            user => return response(Err(Failure::forbidden(&asked, user))),
        }
        let Some(target) = Target::of(&asked.path) else {
            return response(state.store.discovery(&asked.path));
        };
        let Some(kind) = state.store.kind(&target) else {
            return response(Err(Failure::no_resource()));
        };
        if is_watch {
            return Response::new(state.store.watch(target, asked.query));
        }
        let answer = state.store.answer(&kind, &target, &asked);
        response(answer.map(|(code, object)| match asked.metadata {
            true => (code, metadata_of(&object)),
            false => (code, object),
        }))
    }
}

impl State {
    fn taken(&mut self, which: impl Fn(&Asked) -> bool) -> Vec<Asked> {
        self.asked.extract_if(.., |asked| which(asked)).collect()
    }

    fn fault(&mut self, asked: &Asked) -> Option<Fault> {
        let plural = Target::of(&asked.path).map(|target| target.plural);
        let at = self.rules.iter().position(|rule| {
            (rule.methods.is_empty() || rule.methods.contains(&asked.method.as_str()))
                && rule.left != Some(0)
                && (asked.path.ends_with(&rule.path) || plural.as_ref() == Some(&rule.path))
        })?;
        let rule = &mut self.rules[at];
        rule.left = rule.left.map(|left| left - 1);
        Some(rule.fault)
    }
}

fn response(answer: Answer) -> Response<Body> {
    let (code, body) = answer.unwrap_or_else(|failure| (failure.code, failure.status()));
    fixed(code, body.to_string())
}

fn fixed(code: u16, body: String) -> Response<Body> {
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(body.into()).expect("a response")
}

/// The list of the objects' metadata.
fn metadata_of(list: &Value) -> Value {
    let items = list["items"].as_array().into_iter().flatten();
    let item = |object: &Value| {
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": object["metadata"]})
    };
    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
        "metadata": list["metadata"], "items": items.map(item).collect::<Vec<_>>()})
}

/// Removes UID and version from a body.
fn unbound(mut body: Value) -> Value {
    if let Some(Value::Object(metadata)) = body.get_mut("metadata") {
        metadata.remove("uid");
        metadata.remove("resourceVersion");
        if metadata.is_empty()
            && let Some(body) = body.as_object_mut()
        {
            body.remove("metadata");
        }
    }
    body
}

#[tokio::test(start_paused = true)]
async fn it_is_as_the_real_one() {
    let api = FakeApi::default();
    conformance::conforms(&api.client(), "conformance").await;
}
