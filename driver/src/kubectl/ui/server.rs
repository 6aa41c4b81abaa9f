//! The server for the page, on 127.0.0.1.
//!
//! Any program and any web page on the person's machine can reach the port. So every request but
//! the one for the page needs the token, which is only in the address that the person opens. The
//! Host header must name this machine: a web page under a name that resolves to 127.0.0.1 is
//! refused. There is no CORS header, so no other web page may read an answer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream::{self, Stream};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Out, Viewer};

/// What the server serves.
pub(super) struct Served {
    pub(super) token: Token,
    pub(super) page: String,
    /// True if the page has a recording. Then it needs the token, too.
    pub(super) is_recording: bool,
    /// The first message of a stream.
    pub(super) hello: Box<dyn Fn() -> Arc<str> + Send + Sync>,
    pub(super) out: Out,
}

/// The key of the page's requests.
#[derive(Clone, Debug)]
pub(super) struct Token(String);

impl Token {
    /// A new token of 244 random bits.
    pub(super) fn random() -> Token {
        Token(format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()))
    }

    /// The token as part of an address.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares hashes: how long that takes says nothing about the token.
    fn is(&self, text: &str) -> bool {
        Sha256::digest(text) == Sha256::digest(&self.0)
    }
}

/// The routes.
pub(super) fn router(served: Served) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/stream", get(messages))
        .fallback(missing)
        .with_state(Arc::new(served))
}

/// Why a request is refused.
type Refusal = (StatusCode, &'static str);

/// The text of a header, if it has one.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Refuses a request under another name of this machine.
fn check_host(headers: &HeaderMap) -> Result<(), Refusal> {
    let host = text(headers, header::HOST).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    match ["127.0.0.1", "localhost"].contains(&name) {
        true => Ok(()),
        false => Err((StatusCode::FORBIDDEN, "the Host header does not name this machine\n")),
    }
}

/// Refuses a request from another web page. A link to the page itself may be anywhere.
fn check_site(headers: &HeaderMap) -> Result<(), Refusal> {
    match text(headers, HeaderName::from_static("sec-fetch-site")).unwrap_or("none") {
        "same-origin" | "none" => Ok(()),
        _ => Err((StatusCode::FORBIDDEN, "another web page sent this request\n")),
    }
}

/// The token in the query of a request, or an empty one.
fn token(request: &Request) -> String {
    let query = request.uri().query().unwrap_or_default();
    let found = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "token");
    found.map(|(_, token)| token.into_owned()).unwrap_or_default()
}

impl Served {
    /// Refuses a request without the token.
    fn check(&self, request: &Request) -> Result<(), Refusal> {
        check_host(request.headers())?;
        check_site(request.headers())?;
        match self.token.is(&token(request)) {
            true => Ok(()),
            false => Err((
                StatusCode::UNAUTHORIZED,
                "the token is missing or wrong: open the address that the program printed\n",
            )),
        }
    }
}

async fn page(State(served): State<Arc<Served>>, request: Request) -> Response {
    let checked = match served.is_recording {
        true => served.check(&request),
        false => check_host(request.headers()),
    };
    if let Err(refusal) = checked {
        return answer(refusal);
    }
    let html = (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    answer(([html], served.page.clone()))
}

async fn messages(State(served): State<Arc<Served>>, request: Request) -> Response {
    match served.check(&request) {
        Err(refusal) => answer(refusal),
        Ok(()) => answer(Sse::new(sent(served)).keep_alive(KeepAlive::default())),
    }
}

async fn missing(State(served): State<Arc<Served>>, request: Request) -> Response {
    match served.check(&request) {
        Err(refusal) => answer(refusal),
        Ok(()) => answer((StatusCode::NOT_FOUND, "there is nothing at this path\n")),
    }
}

/// An answer that is not kept, not framed, and not read as something else.
fn answer(body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // The page itself says which scripts run, and that it connects to this server alone.
        (header::CONTENT_SECURITY_POLICY, "frame-ancestors 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A reader of the messages.
struct Position {
    served: Arc<Served>,
    /// The number of the next message; `None` at the beginning.
    next: Option<u64>,
    ready: VecDeque<Arc<str>>,
    _viewer: Viewer,
}

/// The messages for one reader. The stream of a reader that is too slow ends; it connects again and
/// gets everything from the beginning.
fn sent(served: Arc<Served>) -> impl Stream<Item = Result<Event, Infallible>> {
    let ready = VecDeque::from([(served.hello)()]);
    let viewer = served.out.viewer();
    stream::unfold(Position { served, next: None, ready, _viewer: viewer }, |mut at| async move {
        loop {
            if let Some(text) = at.ready.pop_front() {
                return Some((Ok(Event::default().data(&*text)), at));
            }
            at.more().await?;
        }
    })
}

impl Position {
    /// Waits for further messages. `None` if some of them are dropped.
    async fn more(&mut self) -> Option<()> {
        let history = self.served.out.history.clone();
        let changed = history.changed();
        tokio::pin!(changed);
        // From here on, no message is missed.
        changed.as_mut().enable();
        let batch = match self.next {
            None => history.all(),
            Some(next) => history.since(next)?,
        };
        self.next = Some(batch.next);
        self.ready.extend(batch.texts);
        if self.ready.is_empty() {
            changed.await;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
