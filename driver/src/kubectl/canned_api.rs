//! An API server for tests: fixed answers by path, through the client's own transport.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tonic::codegen::http::{Request, Response};

use super::Cluster;

/// The answers and the requests so far. Clones share them.
#[derive(Clone, Default)]
pub(super) struct CannedApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    answers: BTreeMap<String, (u16, String)>,
    requests: Vec<String>,
}

impl CannedApi {
    /// Sets the answer to a GET of a path. `?continue=TOKEN` selects a page of a list. Other paths
    /// answer 404.
    pub(super) fn answer(&self, path: &str, code: u16, body: Value) {
        self.text(path, code, &body.to_string());
    }

    /// Sets the answer to a GET of a path to a text.
    pub(super) fn text(&self, path: &str, code: u16, body: &str) {
        self.lock().answers.insert(path.to_owned(), (code, body.to_owned()));
    }

    /// Sets the answer of a list.
    pub(super) fn items(&self, path: &str, items: Value) {
        self.answer(path, 200, json!({"metadata": {}, "items": items}));
    }

    /// Refuses a path, as the API server refuses an account without the right.
    pub(super) fn forbid(&self, path: &str, verb: &str, resource: &str) {
        let message = format!(r#"forbidden: User "u" cannot {verb} resource "{resource}""#);
        let status = json!({
            "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": message,
        });
        self.answer(path, 403, status);
    }

    /// The paths of all requests, with their queries.
    pub(super) fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    /// A client of the server.
    pub(super) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let response = api.respond(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        Client::new(service, "default")
    }

    /// The server as the cluster of a command, with the namespace `demo`.
    pub(super) fn cluster(&self) -> Cluster {
        Cluster {
            client: self.client(),
            context: None,
            namespace: "demo".to_owned(),
            system_namespace: "hostloop".to_owned(),
            driver_name: "hostloop.csi.dev".to_owned(),
        }
    }

    fn respond(&self, request: &Request<Body>) -> Response<String> {
        let uri = request.uri();
        let query = uri.query().unwrap_or_default();
        let token = query.split('&').find(|pair| pair.starts_with("continue="));
        let path = match token {
            Some(token) => format!("{}?{token}", uri.path()),
            None => uri.path().to_owned(),
        };
        let mut state = self.lock();
        state.requests.push(uri.to_string());
        let missing =
            || (404, json!({"status": "Failure", "reason": "NotFound", "code": 404}).to_string());
        let (code, body) = state.answers.get(&path).cloned().unwrap_or_else(missing);
        let mut response = Response::new(body);
        *response.status_mut() = code.try_into().expect("a status code");
        response
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
