//! Detects that the API server went back, because it was restored from a backup.
//!
//! Its versions then begin again at that of the backup. A watch from a later version would be
//! silent until they have caught up, and would then miss all changes before. A server that goes
//! back ends its watches. So after one that has ended early, the next one begins with a question
//! for the server's version. If that is lower, the watch is answered as one from a version that the
//! server has forgotten, and everything is listed again.
//!
//! A server that goes back between two watches breaks neither. The next watch is then silent to its
//! end. It has no bookmark either, of which any other watch has one a minute. So the same question
//! follows a silent watch.
//!
//! This misses a server with versions that have caught up before that question. A server that is
//! restored as its documentation advises skips versions instead, and forgets the older ones.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body as HttpBody, Frame, SizeHint};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::codegen::http::{Request, Response};

use crate::client::kube::is_watch;

/// The latest watch of a store.
#[derive(Default)]
struct Latest {
    /// When it ends if nothing ends it early.
    end: Option<Instant>,
    /// True if it ended early or silent, or did not begin.
    is_broken: bool,
    /// True if it brought an event or a bookmark.
    is_heard: bool,
}

impl Latest {
    /// Whether the next watch may meet a server that went back. A server counts the time of a watch
    /// from its request, and this process from before it: none ends by itself before `end`.
    fn is_doubtful(&mut self) -> bool {
        let end = self.end.take();
        self.is_broken |= end.is_some_and(|end| Instant::now() < end || !self.is_heard);
        self.is_broken
    }
}

/// A client that sends the lists and watches of one store through `client`, and calls `went_back`
/// before a list that replaces everything known.
pub(super) fn detecting(
    client: &Client,
    went_back: impl Fn() + Clone + Send + Sync + 'static,
) -> Client {
    let namespace = client.default_namespace().to_owned();
    let (client, latest) = (client.clone(), Arc::new(Mutex::new(Latest::default())));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, latest, went_back) = (client.clone(), latest.clone(), went_back.clone());
        async move {
            if !is_watch(request.uri().query()) {
                let answer = client.send(request).await?;
                if answer.status().is_success() {
                    // The next watch begins where this list ends.
                    *latest.lock() = Latest::default();
                }
                return Ok::<_, kube::Error>(answer.map(WatchBody::plain));
            }
            let from: u64 = number(&request, "resourceVersion=").unwrap_or(0);
            let path = request.uri().path().to_owned();
            let is_doubtful = latest.lock().is_doubtful();
            if is_doubtful && version(&client, &path).await? < from {
                went_back();
                return Ok(forgotten().map(WatchBody::plain));
            }
            let end = number(&request, "timeoutSeconds=").map(Duration::from_secs);
            let end = end.map(|time| Instant::now() + time);
            latest.lock().is_broken = true;
            let answer = client.send(request).await?;
            if answer.status().is_success() {
                *latest.lock() = Latest {
                    end,
                    ..Latest::default()
                };
            }
            Ok(answer.map(|body| WatchBody {
                body,
                latest: Some(latest),
            }))
        }
    });
    Client::new(service, namespace)
}

/// The body of an answer. That of a watch notes that the watch has brought something.
struct WatchBody {
    body: Body,
    /// `None` for an answer that is not a watch.
    latest: Option<Arc<Mutex<Latest>>>,
}

impl WatchBody {
    /// The body of an answer that is not a watch.
    fn plain(body: Body) -> WatchBody {
        WatchBody { body, latest: None }
    }
}

impl HttpBody for WatchBody {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let (Poll::Ready(Some(Ok(_))), Some(latest)) = (&polled, &self.latest) {
            latest.lock().is_heard = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The number that follows `name` in the query of a request.
fn number(request: &Request<Body>, name: &str) -> Option<u64> {
    let mut parts = request.uri().query()?.split('&');
    parts.find_map(|part| part.strip_prefix(name)?.parse().ok())
}

/// The server's version, as a list of at most one object tells it. Without selectors, the server
/// reads no more than that object.
async fn version(client: &Client, path: &str) -> kube::Result<u64> {
    let request = Request::get(format!("{path}?limit=1")).body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    let list: Value = client.request(request).await?;
    let version = list["metadata"]["resourceVersion"].as_str();
    // A server without versions proves nothing.
    Ok(version
        .and_then(|version| version.parse().ok())
        .unwrap_or(u64::MAX))
}

/// The answer to a watch from a version that the server does not know.
fn forgotten() -> Response<Body> {
    let message = "the API server went back to an older version";
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "reason": "Expired", "code": 410, "message": message});
    let event = json!({"type": "ERROR", "object": status});
    Response::new(Body::from(format!("{event}\n").into_bytes()))
}
