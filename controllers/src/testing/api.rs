//! An API server in memory: get, list, patch and delete, with versions, preconditions and
//! finalizers; watches that tell nothing more than what was listed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use http_body::{Body as HttpBody, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tonic::codegen::Bytes;
use tonic::codegen::http::{Request, Response};

/// What an API server says of a JSON patch that can't be applied, and no more.
const UNFIT_PATCH: &str = "the server rejected our request due to an error in our request";

/// The kinds there are, with the beginnings of their paths and their plurals.
const KINDS: &[(&str, &str, &str)] = &[
    ("ConfigMap", "/api/v1", "configmaps"),
    ("Node", "/api/v1", "nodes"),
    ("PersistentVolume", "/api/v1", "persistentvolumes"),
    ("PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims"),
    ("Pod", "/api/v1", "pods"),
    ("Secret", "/api/v1", "secrets"),
    ("VolumeAttachment", STORAGE, "volumeattachments"),
    ("VolumeAttributesClass", STORAGE, "volumeattributesclasses"),
    ("CSINode", STORAGE, "csinodes"),
    ("StorageClass", STORAGE, "storageclasses"),
    (
        "VolumeSnapshot",
        "/apis/snapshot.storage.k8s.io/v1",
        "volumesnapshots",
    ),
    ("CSIStorageCapacity", STORAGE, "csistoragecapacities"),
    (
        "VolumeSnapshotContent",
        "/apis/snapshot.storage.k8s.io/v1",
        "volumesnapshotcontents",
    ),
    (
        "VolumeGroupSnapshot",
        "/apis/groupsnapshot.storage.k8s.io/v1",
        "volumegroupsnapshots",
    ),
    (
        "VolumeGroupSnapshotContent",
        "/apis/groupsnapshot.storage.k8s.io/v1",
        "volumegroupsnapshotcontents",
    ),
];

const STORAGE: &str = "/apis/storage.k8s.io/v1";
const LABELS: &str = "labelSelector";
const FIELDS: &str = "fieldSelector";

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    log: Vec<(String, Value)>,
    refusals: Vec<(String, u16)>,
    unreadable: Vec<(String, u16)>,
    undefined: Vec<(&'static str, &'static str)>,
    lists: Vec<String>,
}

/// The server. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Api(Arc<Mutex<State>>);

type Answer = Result<Value, (u16, String)>;

impl Api {
    /// Puts an object in, as if somebody had written it, and says how it is stored.
    pub(crate) fn put(&self, mut object: Value) -> Value {
        let mut state = self.lock();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", state.version));
        }
        state.objects.insert(path_of(&object), object.clone());
        object
    }

    /// An object as it is now.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let state = self.lock();
        let mut found = state.objects.iter().filter(|(key, _)| key.ends_with(path));
        found.next().map(|(_, object)| object.clone())
    }

    /// Refuses the next write to a path with this suffix; the path of a watch ends with `?watch`.
    pub(crate) fn refuse(&self, path: &str, code: u16) {
        self.lock().refusals.push((path.to_owned(), code));
    }

    /// Does not answer reads of a path that ends so, any more.
    pub(crate) fn hide(&self, path: &str, code: u16) {
        self.lock().unreadable.push((path.to_owned(), code));
    }

    /// Drops a status field of a kind (by plural), like a CRD without that field.
    pub(crate) fn undefine(&self, plural: &'static str, field: &'static str) {
        self.lock().undefined.push((plural, field));
    }

    /// Takes an object away, as if somebody had deleted it.
    pub(crate) fn take(&self, path: &str) {
        self.lock().objects.retain(|key, _| !key.ends_with(path));
    }

    /// The writes since last asked: `name[/status] <body>`, without what binds them to a version.
    pub(crate) fn writes(&self) -> Vec<String> {
        let log = std::mem::take(&mut self.lock().log);
        log.into_iter()
            .map(|(path, body)| {
                let (_, name) = path.split_at(path.rfind("s/").map_or(0, |at| at + 2));
                let name = match name {
                    "status" => {
                        let mut parts = path.rsplit('/');
                        format!("{}/status", parts.nth(1).unwrap_or_default())
                    }
                    name => name.to_owned(),
                };
                format!("{name} {}", unbound(body))
            })
            .collect()
    }

    /// The lists since last asked, each with what was selected: `pods fieldSelector=a=b`.
    pub(crate) fn lists(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().lists)
    }

    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Told> {
        let (head, body) = request.into_parts();
        let bytes = body.collect_bytes().await.expect("a body");
        let path = head.uri.path().to_owned();
        let asked = query(head.uri.query().unwrap_or_default());
        if asked.get("watch").is_some_and(|watch| watch == "true") {
            return match self.lock().refused(&format!("{path}?watch")) {
                Ok(()) => Response::new(Told::Nothing),
                Err((code, message)) => refusal(code, &message),
            };
        }
        let answer = if head.method == "GET" {
            self.read(&path, &asked)
        } else if head.method == "DELETE" {
            self.delete(&path, serde_json::from_slice(&bytes).expect("a JSON body"))
        } else {
            let kind = head.headers["content-type"].to_str().expect("a type");
            let body = serde_json::from_slice(&bytes).expect("a JSON body");
            self.patch(&path, kind, body)
        };
        match answer {
            Ok(object) => response(200, &object),
            Err((code, message)) => refusal(code, &message),
        }
    }

    fn read(&self, path: &str, asked: &BTreeMap<String, String>) -> Answer {
        let mut state = self.lock();
        let (_, last) = path.rsplit_once('/').expect("a path");
        let of_list = KINDS.iter().any(|(_, _, plural)| *plural == last);
        let mut unreadable = state.unreadable.iter();
        if let Some((_, code)) = unreadable.find(|(end, _)| path.ends_with(end)) {
            let code = *code;
            if of_list {
                state.lists.push(last.to_owned());
            }
            return Err((code, "not now".to_owned()));
        }
        if !of_list {
            let found = state.objects.get(path).cloned();
            return found.ok_or((404, "not found".to_owned()));
        }
        let mut list = last.to_owned();
        for selector in [LABELS, FIELDS] {
            if let Some(value) = asked.get(selector) {
                list.push_str(&format!(" {selector}={value}"));
            }
        }
        state.lists.push(list);
        let number = |key| asked.get(key)?.parse::<usize>().ok();
        let (from, limit) = (number("continue").unwrap_or(0), number("limit"));
        let of_kind = |key: &&String| key.rsplit('/').nth(1) == Some(last);
        let all = state.objects.iter().filter(|(key, _)| of_kind(key));
        let all = all.filter(|(_, object)| is_selected(object, asked));
        let mut rest = all.map(|(_, object)| object.clone()).skip(from);
        let page: Vec<Value> = rest.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
        let next = rest.next().map(|_| (from + page.len()).to_string());
        Ok(
            json!({"kind": "List", "apiVersion": "v1", "items": page, "metadata": {
                "continue": next, "resourceVersion": state.version.to_string()}}),
        )
    }

    fn delete(&self, path: &str, body: Value) -> Answer {
        let mut state = self.lock();
        state.log.push((path.to_owned(), json!("delete")));
        state.refused(path)?;
        let old = state.objects.get(path).cloned();
        let mut object = old.ok_or((404, "not found".to_owned()))?;
        for field in ["uid", "resourceVersion"] {
            let asked = &body["preconditions"][field];
            if !asked.is_null() && *asked != object["metadata"][field] {
                return Err((409, format!("{field} differs")));
            }
        }
        let kept = object["metadata"]["finalizers"].as_array();
        if kept.is_some_and(|list| !list.is_empty()) {
            state.version += 1;
            object["metadata"]["resourceVersion"] = json!(state.version.to_string());
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            state.objects.insert(path.to_owned(), object.clone());
        } else {
            state.objects.remove(path);
        }
        Ok(object)
    }

    fn patch(&self, path: &str, kind: &str, body: Value) -> Answer {
        let mut state = self.lock();
        state.log.push((path.to_owned(), body.clone()));
        state.refused(path)?;
        let object = path.strip_suffix("/status").unwrap_or(path).to_owned();
        let old = state.objects.get(&object).cloned();
        let old = old.ok_or((404, "not found".to_owned()))?;
        for field in ["uid", "resourceVersion"] {
            let asked = &body["metadata"][field];
            if !asked.is_null() && *asked != old["metadata"][field] {
                return Err((409, format!("{field} differs")));
            }
        }
        let mut new = old.clone();
        match kind {
            "application/json-patch+json" => {
                let patch: json_patch::Patch = serde_json::from_value(body).expect("a patch");
                json_patch::patch(&mut new, &patch).map_err(|_| (422, UNFIT_PATCH.to_owned()))?;
            }
            "application/strategic-merge-patch+json" => strategic(&mut new, body),
            _ => json_patch::merge(&mut new, &body),
        }
        // The subresource takes the status, and metadata that is not protected; the object the rest.
        if path.ends_with("/status") {
            new["spec"] = old["spec"].clone();
        } else {
            new["status"] = old["status"].clone();
        }
        for (plural, field) in &state.undefined {
            if object.rsplit('/').nth(1) == Some(plural)
                && let Some(status) = new["status"].as_object_mut()
            {
                status.remove(*field);
            }
        }
        if new != old {
            state.version += 1;
            new["metadata"]["resourceVersion"] = json!(state.version.to_string());
        }
        let kept = new["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
        if !new["metadata"]["deletionTimestamp"].is_null() && !kept {
            // As the server answers: the object of the request, at the version that was read.
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
            state.objects.remove(&object);
        } else {
            state.objects.insert(object, new.clone());
        }
        Ok(new)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("the server")
    }
}

impl State {
    fn refused(&mut self, path: &str) -> Result<(), (u16, String)> {
        let mut refusals = self.refusals.iter();
        let Some(at) = refusals.position(|(end, _)| path.ends_with(end)) else {
            return Ok(());
        };
        let (_, code) = self.refusals.remove(at);
        Err((code, "refused".to_owned()))
    }
}

fn refusal(code: u16, message: &str) -> Response<Told> {
    let reason = if code == 409 { "Conflict" } else { "Other" };
    let status = json!({
        "kind": "Status", "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    response(code, &status)
}

fn response(code: u16, body: &Value) -> Response<Told> {
    let bytes = serde_json::to_vec(body).expect("JSON");
    Response::builder()
        .status(code)
        .body(Told::All(Some(bytes.into())))
        .expect("a response")
}

/// A strategic merge as far as claims go: conditions are merged by their type, or replaced.
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
    let replace = given.iter().any(|one| one["$patch"] == "replace");
    if replace {
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

fn path_of(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().expect("a name");
    let kind = object["kind"].as_str().expect("a kind");
    let (_, group, plural) = KINDS
        .iter()
        .find(|(known, _, _)| *known == kind)
        .unwrap_or_else(|| panic!("objects of kind {kind}"));
    match metadata["namespace"].as_str() {
        None => format!("{group}/{plural}/{name}"),
        Some(namespace) => format!("{group}/namespaces/{namespace}/{plural}/{name}"),
    }
}

/// Whether the selectors of a request select an object.
fn is_selected(object: &Value, asked: &BTreeMap<String, String>) -> bool {
    let label = |key: &str| object["metadata"]["labels"][key].as_str();
    let field = |path: &str| {
        let pointer = format!("/{}", path.replace('.', "/"));
        object.pointer(&pointer)?.as_str()
    };
    asked.get(LABELS).is_none_or(|one| selects(one, label))
        && asked.get(FIELDS).is_none_or(|one| selects(one, field))
}

/// Whether a selector, `key=value` or `!key`, selects what has these values.
fn selects<'a>(selector: &str, value: impl Fn(&str) -> Option<&'a str>) -> bool {
    match (selector.strip_prefix('!'), selector.split_once('=')) {
        (Some(key), _) => value(key).is_none(),
        (None, Some((key, wanted))) => value(key) == Some(wanted),
        (None, None) => value(selector).is_some(),
    }
}

/// What follows the path of a request.
fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    let plain = |text: &str| {
        let known = [("%3D", "="), ("%2F", "/"), ("%21", "!")];
        known.iter().fold(text.to_owned(), |text, (code, sign)| {
            text.replace(code, sign)
        })
    };
    pairs
        .map(|(key, value)| (key.to_owned(), plain(value)))
        .collect()
}

/// The body of an answer.
enum Told {
    /// That is all.
    All(Option<Bytes>),
    /// Nothing yet, for ever.
    Nothing,
}

impl HttpBody for Told {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Told::All(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Told::Nothing => Poll::Pending,
        }
    }
}
