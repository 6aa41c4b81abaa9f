use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tonic::codegen::http::{Method, Request, Response};

use super::*;
use crate::kubectl::canned_api::CannedApi;
use crate::kubectl::check::line::Mark::{self, *};

/// An API server that keeps what is created and at once gives it a status.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    /// Objects that no deletion removes.
    kept: BTreeMap<String, Value>,
    /// The status of new objects, by a part of their path. Others become what is waited for.
    statuses: Vec<(&'static str, Value)>,
    /// Deleting this path has no effect.
    sticky: Option<&'static str>,
    /// Paths where nothing can be created.
    refused: Option<&'static str>,
    requests: Vec<String>,
}

const VOLUMES: &str = "/api/v1/persistentvolumes";

/// The name of a claim's volume.
fn volume_of(claim: &Value) -> Option<&str> {
    claim["spec"]["volumeName"].as_str()
}

impl Server {
    fn cluster(&self) -> Cluster {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Cluster { client: Client::new(service, "default"), ..CannedApi::default().cluster() }
    }

    async fn answer(&self, request: Request<Body>) -> Response<String> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let path = head.uri.path().to_owned();
        let mut state = self.0.lock().unwrap();
        state.requests.push(format!("{} {path}", head.method));
        let found = match head.method {
            Method::POST if state.refused.is_some_and(|refused| path.ends_with(refused)) => None,
            Method::POST => {
                let object: Value = serde_json::from_slice(&body).unwrap();
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                let object = state.with_status(&path, object);
                if let Some(volume) = volume_of(&object) {
                    let volume_path = format!("{VOLUMES}/{volume}");
                    state.objects.insert(volume_path, json!({"metadata": {"name": volume}}));
                }
                state.objects.insert(path, object.clone());
                Some(object)
            }
            Method::DELETE if state.sticky.is_some_and(|sticky| path.contains(sticky)) => {
                state.objects.get(&path).cloned()
            }
            Method::DELETE => {
                let object = state.objects.remove(&path);
                if let Some(volume) = object.as_ref().and_then(volume_of) {
                    state.objects.remove(&format!("{VOLUMES}/{volume}"));
                }
                object
            }
            _ if path.ends_with("/events") => Some(json!({"metadata": {}, "items": [{
                "metadata": {}, "type": "Warning", "reason": "FailedMount", "message": "no loop",
                "involvedObject": {"name": "hostloop-check-x-write"},
            }]})),
            _ => state.objects.get(&path).or(state.kept.get(&path)).cloned(),
        };
        let missing = json!({"kind": "Status", "status": "Failure", "code": 404,
            "reason": "NotFound", "message": ""});
        let code = if found.is_some() { 200 } else { 404 };
        let mut response = Response::new(found.unwrap_or(missing).to_string());
        *response.status_mut() = code.try_into().unwrap();
        response
    }

    fn status(&self, path: &'static str, status: Value) {
        self.0.lock().unwrap().statuses.push((path, status));
    }

    fn left(&self) -> Vec<String> {
        self.0.lock().unwrap().objects.keys().cloned().collect()
    }

    fn created(&self) -> Vec<String> {
        let state = self.0.lock().unwrap();
        let posts = state.requests.iter().filter_map(|line| line.strip_prefix("POST "));
        posts.map(|path| path.rsplit('/').next().unwrap_or_default().to_owned()).collect()
    }
}

impl State {
    fn with_status(&self, path: &str, mut object: Value) -> Value {
        let given = self.statuses.iter().find(|(part, _)| path.contains(part));
        object["status"] = match given {
            Some((_, status)) => status.clone(),
            None => json!({"phase": "Succeeded", "readyToUse": true}),
        };
        if path.contains("/pods/") {
            object["spec"]["nodeName"] = json!("n1");
        }
        if let Some((_, name)) = path.split_once("/persistentvolumeclaims/") {
            object["spec"]["volumeName"] = json!(format!("pv-{name}"));
        }
        object
    }
}

fn plan() -> Plan {
    Plan {
        name: "hostloop-check-x".into(),
        namespace: "demo".into(),
        class: "hostloop-ext4".into(),
        snapshot_class: Some("hostloop".into()),
        image: "i".into(),
        pull_policy: "Never".into(),
        program: None,
        timeout: Duration::from_millis(10),
        left_out: None,
    }
}

async fn lines(server: &Server, plan: &Plan) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut progress = Progress::new();
    run(&server.cluster(), plan, &mut progress, &mut |line| lines.push(line)).await;
    lines
}

fn marks(lines: &[Line]) -> Vec<Mark> {
    lines.iter().map(|line| line.mark).collect()
}

#[tokio::test]
async fn a_good_cluster() {
    let server = Server::default();
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Passed; 4], "{lines:#?}");
    let made =
        ["persistentvolumeclaims", "pods", "volumesnapshots", "persistentvolumeclaims", "pods"];
    assert_eq!(server.created(), made);
    assert_eq!(server.left(), [""; 0]);
}

#[tokio::test]
async fn without_snapshots_another_pod_reads_the_claim() {
    let server = Server::default();
    let plan = Plan { snapshot_class: None, ..plan() };
    let lines = lines(&server, &plan).await;
    assert_eq!(marks(&lines), [Passed; 3]);
    assert_eq!(server.created(), ["persistentvolumeclaims", "pods", "pods"]);
    assert_eq!(server.left(), [""; 0]);
}

#[tokio::test]
async fn after_a_failure_everything_is_deleted() {
    let server = Server::default();
    server.status("-verify", json!({"phase": "Failed", "message": "it differs"}));
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Passed, Passed, Failed, Passed], "{lines:#?}");
    assert!(lines[2].text.ends_with("on node n1 it failed: it differs"), "{lines:?}");
    assert_eq!(server.left(), [""; 0]);
}

#[tokio::test]
async fn at_the_deadline_the_events_say_why() {
    let server = Server::default();
    server.status("-write", json!({"phase": "Pending"}));
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Failed, Passed], "{lines:#?}");
    assert!(lines[0].text.ends_with("; FailedMount: no loop"), "{lines:?}");
    assert_eq!(server.left(), [""; 0]);
}

#[tokio::test]
async fn what_can_not_be_deleted_is_named() {
    let server = Server::default();
    server.0.lock().unwrap().sticky = Some("hostloop-check-x-restored");
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Passed, Passed, Passed, Failed]);
    let text = "PersistentVolumeClaim hostloop-check-x-restored is still being deleted";
    assert!(lines[3].text.ends_with(text), "{lines:?}");
    assert_eq!(server.left().len(), 2, "the claim and its volume");
}

#[tokio::test]
async fn a_volume_that_outlives_its_claim_is_named() {
    let server = Server::default();
    let lost = json!({"metadata": {"name": "pv-hostloop-check-x"}});
    server.0.lock().unwrap().kept.insert(format!("{VOLUMES}/pv-hostloop-check-x"), lost);
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Passed, Passed, Passed, Failed]);
    assert!(lines[3].text.ends_with("PersistentVolume pv-hostloop-check-x still exists"));
}

#[tokio::test]
async fn what_was_not_made_is_not_deleted() {
    let server = Server::default();
    server.0.lock().unwrap().refused = Some("persistentvolumeclaims");
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Failed], "{lines:#?}");
    let state = server.0.lock().unwrap();
    assert!(!state.requests.iter().any(|line| line.starts_with("DELETE")), "{:?}", state.requests);
}
