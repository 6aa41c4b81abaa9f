//! Connections of clients: who asks, and what becomes of a request.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use futures::StreamExt;
use http::{Request, Response};
use kube::Client;
use serde_json::{Value, json};

use super::failure::Failure;
use super::faults::Fault;
use super::path::Target;
use super::request::RecordedRequest;
use super::{Answer, FakeApi, WRITES};

/// The connection of a client. Clones share it.
#[derive(Clone)]
pub struct Connection {
    api: FakeApi,
    who: Arc<str>,
    is_cut: Arc<AtomicBool>,
}

/// A write that took effect.
#[derive(Debug)]
pub struct Write<'a> {
    /// The name of the connection.
    pub who: &'a str,
    /// `POST`, `PUT`, …
    pub method: &'a str,
    /// The path of the request.
    pub path: &'a str,
    /// The object before; none if it is new.
    pub old: Option<&'a Value>,
    /// The object after; none if it is gone.
    pub new: Option<&'a Value>,
}

/// Sees each write.
pub(super) type Observer = Box<dyn FnMut(&Write) + Send>;

impl FakeApi {
    /// Creates a connection with the name of its client.
    pub fn connect(&self, who: &str) -> Connection {
        Connection {
            api: self.clone(),
            who: who.into(),
            is_cut: Arc::default(),
        }
    }
}

impl Connection {
    /// Creates a client that asks over this connection.
    pub fn client(&self) -> Client {
        let connection = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let connection = connection.clone();
            async move { connection.respond(request).await }
        });
        Client::new(service, "default")
    }

    /// Cuts the connection, as the death of its client does. No request has an effect any more, or
    /// is ever answered, and its watches tell nothing more.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    async fn respond(&self, request: Request<kube::client::Body>) -> io::Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let bytes = body.collect_bytes().await.expect("a body");
        let query = head.uri.query().unwrap_or_default();
        let query: BTreeMap<String, String> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let is_watch = query.get("watch").is_some_and(|watch| watch == "true");
        let suffix = if is_watch { "?watch" } else { "" };
        let header = |name| {
            let value = head.headers.get(name);
            value.map_or("", |value| value.to_str().expect("a text"))
        };
        let request = RecordedRequest {
            method: head.method.to_string(),
            path: format!("{}{suffix}", head.uri.path()),
            uri: head.uri.to_string(),
            query,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            content: header("content-type").to_owned(),
            metadata: header("accept").contains("as=PartialObjectMetadataList"),
        };
        if self.is_cut() {
            return std::future::pending().await;
        }
        let fault = {
            let mut state = self.api.0.lock();
            if state.remembered > 0 {
                state.remember(request.clone());
            }
            state.faults.of(&self.who, &request)
        };
        match fault {
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Refuse(code)) => {
                return Ok(response(Err(Failure::scripted(code, &request))));
            }
            Some(Fault::Disconnect) => return Err(io::ErrorKind::ConnectionRefused.into()),
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::LoseAnswer) | None => {}
        }
        if self.is_cut() {
            return std::future::pending().await;
        }
        let answer = self.answer(request, header("impersonate-user"));
        match fault {
            Some(Fault::LoseAnswer) => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Ok(answer),
        }
    }

    fn answer(&self, request: RecordedRequest, user: &str) -> Response<Body> {
        let mut state = self.api.0.lock();
        if let Some((code, text)) = state.answers.get(&request.path) {
            return fixed(*code, text.clone());
        }
        if !user.is_empty() {
            // A user without a role.
            return response(Err(Failure::forbidden(&request, user)));
        }
        let Some(target) = Target::of(&request.path) else {
            return response(state.store.discovery(&request.path));
        };
        let Some(kind) = state.store.kind(&target) else {
            return response(Err(Failure::no_resource()));
        };
        if request.is_watch() {
            drop(state);
            return Response::new(self.alive(self.api.watch(&kind, target, request.query)));
        }
        let is_write = WRITES.contains(&request.method.as_str());
        let before = |name: &str| state.store.objects.get(&target.key(name)).cloned();
        let old = target.name.as_deref().filter(|_| is_write).and_then(before);
        let answer = state.store.answer(&kind, &target, &request);
        if let Ok((_, answered)) = &answer
            && is_write
            && !state.observers.is_empty()
        {
            let created = answered["metadata"]["name"].as_str();
            let name = target.name.as_deref().or(created).unwrap_or_default();
            let new = state.store.objects.get(&target.key(name)).cloned();
            let write = Write {
                who: &self.who,
                method: &request.method,
                path: &request.path,
                old: old.as_deref(),
                new: new.as_deref(),
            };
            state.observers.iter_mut().for_each(|see| see(&write));
        }
        response(answer.map(|(code, object)| {
            if request.metadata {
                (code, metadata_of(&object))
            } else {
                (code, object)
            }
        }))
    }

    /// The body of a watch, which tells nothing more once the connection is cut.
    fn alive(&self, body: Body) -> Body {
        let is_cut = self.is_cut.clone();
        let stream = body.into_data_stream().then(move |part| {
            let is_cut = is_cut.load(Ordering::SeqCst);
            async move {
                if is_cut {
                    std::future::pending().await
                } else {
                    part
                }
            }
        });
        Body::from_stream(stream)
    }
}

fn response(answer: Answer) -> Response<Body> {
    let (code, body) = answer.unwrap_or_else(|failure| (failure.code, failure.status()));
    fixed(code, body.to_string())
}

fn fixed(code: u16, body: String) -> Response<Body> {
    let response = Response::builder()
        .status(code)
        .header("content-type", "application/json");
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
