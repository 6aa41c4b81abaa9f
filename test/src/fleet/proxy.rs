//! A proxy between controllers and the API server that behaves like a bad network. Some calls fail,
//! some are slow, some are executed without an answer, and watches break off.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use kube::Client;
use kube::config::Kubeconfig;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::dice::Dice;
use crate::front::objects;

/// The largest request of the controllers.
const LARGEST: usize = 16 << 20;

/// The fate of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mishap {
    /// The server answers with an error; the call is not executed.
    Failed,
    /// The server asks for a later retry (429); the call is not executed.
    TooMany,
    /// The connection breaks; the call is not executed.
    Broken,
    /// The connection breaks after the call is executed.
    Unanswered,
    /// The call is executed after seconds.
    Slow,
    /// A watch breaks off after a while.
    Cut,
}

const CALLS: [Mishap; 5] = [
    Mishap::Failed,
    Mishap::TooMany,
    Mishap::Broken,
    Mishap::Unanswered,
    Mishap::Slow,
];

/// The proxy, which runs until it is dropped. It speaks plain HTTP on this machine only.
pub struct Proxy {
    address: String,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    client: Client,
    /// The percentage of calls with a mishap, and of watches that are cut.
    percent: u64,
    percent_cut: u64,
    dice: Dice,
    counts: Mutex<BTreeMap<Option<Mishap>, usize>>,
}

impl Proxy {
    /// Starts a proxy for the API server of this kubeconfig. The same seed makes the same sequence
    /// of mishaps. The order of arrival decides which call meets which mishap.
    pub async fn start(kubeconfig: &Path, seed: u64, percent: u64, percent_cut: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let shared = Arc::new(Shared {
            client: anonymous(kubeconfig).await,
            percent,
            percent_cut,
            dice: Dice::new(seed),
            counts: Mutex::default(),
        });
        let router = Router::new().fallback(pass).with_state(shared.clone());
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the proxy: {error}");
            }
        });
        Proxy {
            address: format!("http://{address}"),
            shared,
            serving,
        }
    }

    /// Writes a kubeconfig like this one to this directory, with the proxy as its server.
    pub fn kubeconfig(&self, like: &Path, dir: &Path) -> PathBuf {
        let read = Kubeconfig::read_from(like);
        let read = read.unwrap_or_else(|e| panic!("{}: {e}", like.display()));
        let mut config = serde_json::to_value(read).expect("a kubeconfig is data");
        config["clusters"][0]["cluster"] = serde_json::json!({"server": self.address});
        let file = dir.join("proxied.kubeconfig");
        std::fs::write(&file, config.to_string()).expect("a kubeconfig can be written");
        file
    }

    /// The number of calls with each mishap, and of successful calls under `None`.
    pub fn counts(&self) -> BTreeMap<Option<Mishap>, usize> {
        self.shared.counts.lock().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A client without credentials: the forwarded request identifies the user.
async fn anonymous(kubeconfig: &Path) -> Client {
    let mut config = objects::config(kubeconfig).await;
    config.auth_info = Default::default();
    config.default_retry = false;
    Client::try_from(config).expect("a client can be made")
}

impl Shared {
    fn next(&self, watch: bool) -> Option<Mishap> {
        let mishap = if watch {
            (self.dice.below(100) < self.percent_cut).then_some(Mishap::Cut)
        } else {
            (self.dice.below(100) < self.percent)
                .then(|| CALLS[self.dice.below(CALLS.len() as u64) as usize])
        };
        *self.counts.lock().entry(mishap).or_default() += 1;
        mishap
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let watch = query
        .split('&')
        .any(|pair| pair == "watch=true" || pair == "watch=1");
    let mishap = shared.next(watch);
    match mishap {
        Some(Mishap::Failed) => return refused(StatusCode::INTERNAL_SERVER_ERROR),
        Some(Mishap::TooMany) => return refused(StatusCode::TOO_MANY_REQUESTS),
        Some(Mishap::Broken) => return broken(),
        Some(Mishap::Slow) => {
            let time = Duration::from_millis(500 + shared.dice.below(3_500));
            tokio::time::sleep(time).await;
        }
        Some(Mishap::Unanswered | Mishap::Cut) | None => {}
    }
    let answer = match forward(&shared.client, request).await {
        Ok(answer) => answer,
        Err(_) => return broken(),
    };
    match mishap {
        Some(Mishap::Unanswered) => broken(),
        Some(Mishap::Cut) => {
            let time = Duration::from_millis(1_000 + shared.dice.below(9_000));
            cut(answer, time)
        }
        _ => answer,
    }
}

async fn forward(client: &Client, request: Request) -> Result<Response, String> {
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, LARGEST).await.map_err(|e| e.to_string())?;
    for name in [header::HOST, header::CONNECTION, header::CONTENT_LENGTH] {
        parts.headers.remove(name);
    }
    let request = axum::http::Request::from_parts(parts, kube::client::Body::from(body));
    let answer = client.send(request).await.map_err(|e| e.to_string())?;
    let (mut parts, body) = answer.into_parts();
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    Ok(Response::from_parts(parts, Body::new(body)))
}

fn refused(code: StatusCode) -> Response {
    let status: Value = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
        "reason": "Mishap", "message": "the proxy refuses this call",
    });
    let kind = (header::CONTENT_TYPE, "application/json");
    (code, [kind], status.to_string()).into_response()
}

/// A response without an end: the server closes the connection in the middle.
fn broken() -> Response {
    let error = stream::once(async { Err::<Vec<u8>, _>(io::Error::other("broken")) });
    Response::new(Body::from_stream(error))
}

fn cut(answer: Response, time: Duration) -> Response {
    let (parts, body) = answer.into_parts();
    let error = stream::once(async { Err(axum::Error::new(io::Error::other("cut"))) });
    let until = Box::pin(tokio::time::sleep(time));
    let body = body.into_data_stream().take_until(until).chain(error);
    Response::from_parts(parts, Body::from_stream(body))
}
