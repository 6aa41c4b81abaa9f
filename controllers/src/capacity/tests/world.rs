//! An API server and a driver in memory, with what the capacity loop needs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use hostloop_memory_driver::Handlers;
use hostloop_proto::csi;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tonic::Status;

use crate::csi::Csi;
use crate::testing::connect;

/// Resource path of the capacity objects.
const OBJECTS: &str = "csistoragecapacities";

#[derive(Default)]
pub(super) struct State {
    /// `POST`, `PATCH csisc-1`, …
    pub(super) log: Vec<String>,
    /// Objects by kind and name: `pods/p`.
    pub(super) objects: BTreeMap<String, Value>,
    /// HTTP codes with which the next writes fail.
    pub(super) refusals: Vec<u16>,
    /// The room of classes, by their parameter `pool`.
    pub(super) rooms: BTreeMap<String, Result<(i64, Option<i64>), Status>>,
    pub(super) asked: Vec<csi::GetCapacityRequest>,
    version: u64,
}

#[derive(Clone, Default)]
pub(super) struct World(Arc<Mutex<State>>);

impl World {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panicked")
    }

    /// The writes since the last call.
    pub(super) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    pub(super) fn put(&self, path: &str, object: Value) {
        self.state().objects.insert(path.to_owned(), object);
    }

    /// The capacity objects, by name.
    pub(super) fn capacities(&self) -> Vec<Value> {
        let state = self.state();
        let ours = state.objects.iter();
        let ours = ours.filter(|(path, _)| path.starts_with(OBJECTS));
        ours.map(|(_, object)| object.clone()).collect()
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
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.expect("a body");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (_, path) = head.uri.path().split_once("/ns/").expect("our namespace");
        let (code, answer) = self.state().answer(&head.method, path, body);
        let bytes = serde_json::to_vec(&answer).expect("JSON");
        let response = Response::builder().status(code).body(Body::from(bytes));
        response.expect("a response")
    }

    pub(super) fn csi(&self) -> Csi {
        let handlers = Handlers::default();
        let world = self.clone();
        handlers.on(move |request: csi::GetCapacityRequest| {
            let pool = request.parameters.get("pool").cloned().unwrap_or_default();
            let mut state = world.state();
            state.asked.push(request);
            let room = state.rooms.get(&pool).cloned();
            let (available, largest) = room.unwrap_or(Ok((0, None)))?;
            Ok(csi::GetCapacityResponse {
                available_capacity: available,
                maximum_volume_size: largest,
                minimum_volume_size: None,
            })
        });
        connect(&handlers)
    }
}

fn status(code: u16) -> (u16, Value) {
    let answer = json!({
        "kind": "Status", "status": "Failure", "code": code,
        "reason": "AsScripted", "message": "as scripted",
    });
    (code, answer)
}

impl State {
    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        if method == Method::GET {
            return match self.objects.get(path) {
                Some(object) => (200, object.clone()),
                None => status(404),
            };
        }
        let name = path.strip_prefix(OBJECTS).expect("a capacity object");
        self.log
            .push(format!("{method} {}", name.trim_start_matches('/')));
        if let Some(code) = self.refusals.pop() {
            return status(code);
        }
        self.version += 1;
        let version = json!(self.version.to_string());
        if method == Method::POST {
            let mut object = body;
            let name = format!("csisc-{}", self.version);
            object["metadata"]["name"] = json!(name);
            object["metadata"]["uid"] = json!(format!("uid of {name}"));
            object["metadata"]["resourceVersion"] = version;
            self.objects
                .insert(format!("{OBJECTS}/{name}"), object.clone());
            return (201, object);
        }
        let Some(object) = self.objects.get_mut(path) else {
            return status(404);
        };
        if method == Method::DELETE {
            let object = object.clone();
            self.objects.remove(path);
            return (200, object);
        }
        if body["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
            return status(409);
        }
        json_patch::merge(object, &body);
        object["metadata"]["resourceVersion"] = version;
        (200, object.clone())
    }
}
