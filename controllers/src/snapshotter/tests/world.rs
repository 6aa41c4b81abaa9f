//! A small API server and a small CSI driver, with one log of the requests to both.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use hostloop_memory_driver::Handlers;
use hostloop_proto::csi;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::cache::{Caches, Scope};
use crate::client::events::Event;
use crate::client::{Events, Kube, Leadership};
use crate::controller::context::Common;
use crate::controller::{Context, Metrics};
use crate::csi::driver::{ControllerCapability, GroupCapability, Service};
use crate::csi::{Csi, Driver};
use crate::testing::connect;

/// The log, the objects by path, and the driver's next answers.
#[derive(Clone, Default)]
pub(super) struct World {
    pub(super) log: Arc<Mutex<Vec<String>>>,
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    /// Number of status writes that fail with a conflict first.
    pub(super) conflicts: Arc<Mutex<usize>>,
    pub(super) singles: Answers<csi::Snapshot>,
    pub(super) groups: Answers<csi::VolumeGroupSnapshot>,
    pub(super) deletions: Answers<()>,
}

/// Answers in order. After the last one, the driver returns an error.
type Answers<T> = Arc<Mutex<VecDeque<Result<T, Status>>>>;

fn next<T>(answers: &Answers<T>) -> Result<T, Status> {
    let next = answers.lock().unwrap().pop_front();
    next.unwrap_or_else(|| Err(Status::not_found("none such")))
}

impl World {
    pub(super) fn put(&self, path: &str, mut object: Value) -> Value {
        object["metadata"]["resourceVersion"] = json!("1");
        object["metadata"]["uid"] = json!(format!("uid-of-{path}"));
        self.objects
            .lock()
            .unwrap()
            .insert(path.to_owned(), object.clone());
        object
    }

    pub(super) fn get(&self, path: &str) -> Option<Value> {
        self.objects.lock().unwrap().get(path).cloned()
    }

    /// Changes the object's version, as a write of another client does.
    pub(super) fn bump(&self, path: &str) {
        let mut objects = self.objects.lock().unwrap();
        let object = objects.get_mut(path).unwrap();
        object["metadata"]["resourceVersion"] = json!("9");
    }

    /// Takes the log entries since the last call.
    pub(super) fn happened(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    fn note(&self, what: String) {
        self.log.lock().unwrap().push(what);
    }

    pub(super) fn context(
        &self,
        scope: Scope,
        leads: bool,
        controller: &[ControllerCapability],
    ) -> (Context, tokio::sync::mpsc::Receiver<Event>) {
        let metrics = Arc::new(Metrics::default());
        let (events, collected) = Events::collected(metrics.clone());
        let driver = Driver::with(
            self.csi(),
            "d",
            &[Service::ControllerService, Service::GroupControllerService],
            controller,
            &[GroupCapability::CreateDeleteGetVolumeGroupSnapshot],
        );
        let context = Context {
            driver: Arc::new(driver),
            kube: Kube::new(self.client(), None, metrics.clone(), "test"),
            caches: Arc::new(Caches::unwatched()),
            events,
            metrics,
            scope,
            pools: Default::default(),
            room: Arc::default(),
            leader: if leads {
                Leadership::always()
            } else {
                Leadership::elected().1
            },
            stop: CancellationToken::new(),
            common: Common::default(),
        };
        (context, collected)
    }

    /// Lists all objects of a kind. This server does not serve group snapshots.
    fn list(&self, plural: &str) -> (StatusCode, Value) {
        if plural.starts_with("volumegroup") {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        }
        let objects = self.objects.lock().unwrap();
        let items: Vec<&Value> = objects
            .iter()
            .filter(|(path, _)| path.split('/').next() == Some(plural))
            .map(|(_, object)| object)
            .collect();
        let list = json!({"kind": "List", "apiVersion": "v1", "items": items,
            "metadata": {"resourceVersion": "1"}});
        (StatusCode::OK, list)
    }

    pub(super) fn client(&self) -> Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move {
                let (parts, body) = request.into_parts();
                if parts
                    .uri
                    .query()
                    .is_some_and(|query| query.contains("watch=true"))
                {
                    std::future::pending::<()>().await;
                }
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (code, answer) = world.answer(&parts.method, parts.uri.path(), &body);
                let answer = serde_json::to_vec(&answer).unwrap();
                let response = Response::builder().status(code).body(Body::from(answer));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let short = path.rsplit("/v1/").next().unwrap();
        if !short.contains('/') {
            return self.list(short);
        }
        let (name, status) = match short.strip_suffix("/status") {
            Some(name) => (name, true),
            None => (short, false),
        };
        self.note(if *method == Method::GET {
            format!("GET {short}")
        } else {
            format!("{method} {short} {}", without_versions(body))
        });
        let mut objects = self.objects.lock().unwrap();
        let Some(object) = objects.get_mut(name) else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        if *method == Method::GET {
            return (StatusCode::OK, object.clone());
        }
        let mut conflicts = self.conflicts.lock().unwrap();
        let conflict = failure(StatusCode::CONFLICT, "Conflict");
        if status && *conflicts > 0 {
            *conflicts -= 1;
            object["metadata"]["resourceVersion"] = json!("77");
            return conflict;
        }
        // Like the real API server, this one ignores the UID in a status write.
        for (key, minded) in [("uid", !status), ("resourceVersion", true)] {
            let wanted = &body["metadata"][key];
            if minded && !wanted.is_null() && *wanted != object["metadata"][key] {
                return conflict;
            }
        }
        let version: u64 = object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        if body.is_array() {
            let operations = serde_json::from_value::<json_patch::Patch>(body.clone()).unwrap();
            if json_patch::patch(object, &operations).is_err() {
                return failure(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "the server rejected our request due to an error in our request",
                );
            }
        } else {
            json_patch::merge(object, body);
        }
        object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        (StatusCode::OK, object.clone())
    }

    fn csi(&self) -> Csi {
        let handlers = Handlers::default();
        let world = self.clone();
        handlers.on(move |asked: csi::CreateSnapshotRequest| {
            let (more, secrets) = (pairs(&asked.parameters), pairs(&asked.secrets));
            let (name, volume) = (asked.name, asked.source_volume_id);
            world.note(format!(
                "CreateSnapshot {name} of {volume}{more} with{secrets}"
            ));
            let snapshot = Some(next(&world.singles)?);
            Ok(csi::CreateSnapshotResponse { snapshot })
        });
        let world = self.clone();
        handlers.on(move |asked: csi::DeleteSnapshotRequest| {
            let (snapshot, secrets) = (asked.snapshot_id, pairs(&asked.secrets));
            world.note(format!("DeleteSnapshot {snapshot} with{secrets}"));
            next(&world.deletions).map(|()| csi::DeleteSnapshotResponse {})
        });
        let world = self.clone();
        handlers.on(move |asked: csi::ListSnapshotsRequest| {
            let (snapshot, secrets) = (asked.snapshot_id, pairs(&asked.secrets));
            world.note(format!("ListSnapshots {snapshot} with{secrets}"));
            let mut answer = csi::ListSnapshotsResponse::default();
            let snapshot = next(&world.singles).ok();
            answer.entries.extend(snapshot.map(|snapshot| {
                let snapshot = Some(snapshot);
                csi::list_snapshots_response::Entry { snapshot }
            }));
            Ok(answer)
        });
        let world = self.clone();
        handlers.on(move |asked: csi::GetSnapshotRequest| {
            world.note(format!("GetSnapshot {}", asked.snapshot_id));
            let snapshot = Some(next(&world.singles)?);
            Ok(csi::GetSnapshotResponse { snapshot })
        });
        let world = self.clone();
        handlers.on(move |asked: csi::CreateVolumeGroupSnapshotRequest| {
            let (more, secrets) = (pairs(&asked.parameters), pairs(&asked.secrets));
            let (name, volumes) = (asked.name, asked.source_volume_ids.join(","));
            world.note(format!(
                "CreateGroup {name} of {volumes}{more} with{secrets}"
            ));
            let group_snapshot = Some(next(&world.groups)?);
            Ok(csi::CreateVolumeGroupSnapshotResponse { group_snapshot })
        });
        let world = self.clone();
        handlers.on(move |asked: csi::DeleteVolumeGroupSnapshotRequest| {
            let (group, members) = (asked.group_snapshot_id, asked.snapshot_ids.join(","));
            let secrets = pairs(&asked.secrets);
            world.note(format!("DeleteGroup {group} {members} with{secrets}"));
            next(&world.deletions).map(|()| csi::DeleteVolumeGroupSnapshotResponse {})
        });
        let world = self.clone();
        handlers.on(move |asked: csi::GetVolumeGroupSnapshotRequest| {
            let (group, members) = (asked.group_snapshot_id, asked.snapshot_ids.join(","));
            let secrets = pairs(&asked.secrets);
            world.note(format!("GetGroup {group} {members} with{secrets}"));
            let group_snapshot = Some(next(&world.groups)?);
            Ok(csi::GetVolumeGroupSnapshotResponse { group_snapshot })
        });
        let world = self.clone();
        handlers.on_unhandled(move |method| world.note(method.to_owned()));
        connect(&handlers)
    }
}

fn failure(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16()});
    (code, body)
}

/// Removes versions from a log entry: they make expected lines long, and the server checks them.
fn without_versions(body: &Value) -> String {
    let mut body = body.clone();
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("uid");
        metadata.remove("resourceVersion");
        if metadata.is_empty() {
            body.as_object_mut().unwrap().remove("metadata");
        }
    }
    if let Some(time) = body.pointer_mut("/status/error/time") {
        *time = json!("now");
    }
    body.to_string()
}

fn pairs(map: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for (key, value) in map {
        let _ = write!(text, " {key}={value}");
    }
    text
}
