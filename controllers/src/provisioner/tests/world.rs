//! An API server and a driver that log their requests in one list.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use hostloop_memory_driver::Handlers;
use hostloop_proto::csi;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use crate::csi::Csi;
use crate::testing::connect;

/// The logged requests, and the responses to give.
#[derive(Default)]
pub(super) struct State {
    /// `POST persistentvolumes/pvc-1`, `CreateVolume pvc-1`, …
    pub(super) log: Vec<String>,
    /// Bodies of writes, in order.
    pub(super) bodies: Vec<Value>,
    /// Objects by path, as `persistentvolumes/pvc-1` or `ns/persistentvolumeclaims/data`.
    pub(super) objects: BTreeMap<String, Value>,
    /// HTTP status codes for the next failing writes; 0 lets a write succeed.
    pub(super) write_failures: VecDeque<u16>,
    /// The responses to the next CreateVolume calls; without one, the call succeeds.
    pub(super) creations: VecDeque<Result<csi::Volume, Status>>,
    /// The requests of CreateVolume calls.
    pub(super) created: Vec<csi::CreateVolumeRequest>,
    /// The errors of the next DeleteVolume calls; without one, the call succeeds.
    pub(super) deletions: VecDeque<Status>,
    /// IDs of volumes that ControllerGetVolume finds.
    pub(super) known: Vec<String>,
    /// The path of an object. A read of it takes so long that the reader loses its lead.
    pub(super) slow: Option<(String, watch::Sender<Option<Instant>>)>,
}

#[derive(Clone, Default)]
pub(super) struct World(Arc<Mutex<State>>);

impl World {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panicked")
    }

    /// Takes the requests since the last call.
    pub(super) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    pub(super) fn client(&self) -> Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move { Ok::<_, Infallible>(world.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let method = request.method().as_str().to_owned();
        let path = short(request.uri().path());
        let body = request.into_body().collect_bytes().await.expect("a body");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (code, answer) = self.state().answer(&method, path, body);
        let bytes = serde_json::to_vec(&answer).expect("JSON");
        Response::builder()
            .status(code)
            .body(Body::from(bytes))
            .expect("a response")
    }

    /// A client of the driver, over pipes in memory.
    pub(super) fn csi(&self) -> Csi {
        let handlers = Handlers::default();
        let world = self.clone();
        handlers.on(move |request| world.state().create_volume(request));
        let world = self.clone();
        handlers.on(move |request| world.state().delete_volume(request));
        let world = self.clone();
        handlers.on(move |request: csi::ControllerGetVolumeRequest| {
            match world.state().known.contains(&request.volume_id) {
                true => Ok(csi::ControllerGetVolumeResponse::default()),
                false => Err(Status::not_found("not here")),
            }
        });
        connect(&handlers)
    }
}

/// A path without the common prefix: `ns/kind/name`.
fn short(path: &str) -> String {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let skip = if parts[0] == "api" { 2 } else { 3 };
    let rest = &parts[skip..];
    match rest {
        ["namespaces", namespace, rest @ ..] => format!("{namespace}/{}", rest.join("/")),
        rest => rest.join("/"),
    }
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    let answer = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": reason,
    });
    (code, answer)
}

impl State {
    fn answer(&mut self, method: &str, mut path: String, body: Value) -> (u16, Value) {
        if method == "POST" {
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            path = format!("{path}/{name}");
        }
        self.log.push(format!("{method} {path}"));
        let known = self.objects.get(&path).cloned();
        if method == "GET" {
            if let Some((_, until)) = self.slow.as_ref().filter(|(slow, _)| *slow == path) {
                until.send_replace(None);
            }
            return known.map_or(status(404, "NotFound"), |object| (200, object));
        }
        self.bodies.push(body.clone());
        match self.write_failures.pop_front() {
            None | Some(0) => {}
            Some(code) => return status(code, "as scripted"),
        }
        match (method, known) {
            ("POST", Some(_)) => status(409, "AlreadyExists"),
            ("POST", None) => {
                self.objects.insert(path, body.clone());
                (201, body)
            }
            (_, None) => status(404, "NotFound"),
            ("DELETE", Some(mut object)) => {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                self.objects.insert(path, object.clone());
                (200, object)
            }
            (_, Some(mut object)) => {
                if body.is_array() {
                    let patch: json_patch::Patch = serde_json::from_value(body).expect("a patch");
                    if json_patch::patch(&mut object, &patch).is_err() {
                        return status(
                            422,
                            "the server rejected our request due to an error in our request",
                        );
                    }
                } else {
                    let told = &body["metadata"]["resourceVersion"];
                    if !told.is_null() && *told != object["metadata"]["resourceVersion"] {
                        return status(409, "Conflict");
                    }
                    json_patch::merge(&mut object, &body);
                }
                self.objects.insert(path, object.clone());
                (200, object)
            }
        }
    }

    fn create_volume(
        &mut self,
        request: csi::CreateVolumeRequest,
    ) -> Result<csi::CreateVolumeResponse, Status> {
        self.log.push(format!("CreateVolume {}", request.name));
        self.created.push(request.clone());
        let volume = match self.creations.pop_front() {
            Some(scripted) => scripted?,
            None => csi::Volume {
                volume_id: "handle".to_owned(),
                content_source: request.volume_content_source,
                ..csi::Volume::default()
            },
        };
        let volume = Some(volume);
        Ok(csi::CreateVolumeResponse { volume })
    }

    fn delete_volume(
        &mut self,
        request: csi::DeleteVolumeRequest,
    ) -> Result<csi::DeleteVolumeResponse, Status> {
        self.log.push(format!("DeleteVolume {}", request.volume_id));
        let failed = self.deletions.pop_front();
        failed.map_or(Ok(csi::DeleteVolumeResponse {}), Err)
    }
}
