//! The server for the page, on 127.0.0.1.
//!
//! Any program and any web page on the person's machine can reach the port. So the page itself has
//! no data, and every request for data needs a session. The page gets one for the token in the
//! address that the person opens ([`Keys`]). The Host header must name this machine: a web page
//! under a name that resolves to 127.0.0.1 is refused. There is no CORS header, so no other web
//! page may read an answer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures::stream::{self, Stream};
use hostloop_http_server::Lasting;

use super::keys::{Keys, Refused};
use super::{Out, Viewer};

/// The header with the token.
const TOKEN: HeaderName = HeaderName::from_static("x-hostloop-token");

/// What the server serves.
pub(super) struct ServedPage {
    pub(super) keys: Keys,
    pub(super) page: String,
    /// The recording that the page shows, as JSON.
    pub(super) recording: Option<String>,
    /// The first message of a stream.
    pub(super) hello: Box<dyn Fn() -> Arc<str> + Send + Sync>,
    pub(super) out: Out,
}

/// The routes.
pub(super) fn router(served: ServedPage) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/session", post(session))
        .route("/stream", get(messages))
        .route("/recording", get(recording))
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
    if ["127.0.0.1", "localhost"].contains(&name) {
        Ok(())
    } else {
        Err((
            StatusCode::FORBIDDEN,
            "the Host header does not name this machine\n",
        ))
    }
}

/// Refuses a request from another web page. A link to the page itself may be anywhere.
fn check_site(headers: &HeaderMap) -> Result<(), Refusal> {
    match text(headers, HeaderName::from_static("sec-fetch-site")).unwrap_or("none") {
        "same-origin" | "none" => Ok(()),
        _ => Err((
            StatusCode::FORBIDDEN,
            "another web page sent this request\n",
        )),
    }
}

/// The session in the query of a request, or an empty text.
fn session_of(request: &Request) -> String {
    let query = request.uri().query().unwrap_or_default();
    let found = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "session");
    found
        .map(|(_, session)| session.into_owned())
        .unwrap_or_default()
}

impl ServedPage {
    /// Refuses a request without a session.
    fn check(&self, request: &Request) -> Result<(), Refusal> {
        check_host(request.headers())?;
        check_site(request.headers())?;
        if self.keys.is_session(&session_of(request)) {
            Ok(())
        } else {
            Err((
                StatusCode::UNAUTHORIZED,
                "there is no such session: open the address that the terminal shows\n",
            ))
        }
    }

    /// Gives a session for the token of a request.
    fn begin(&self, headers: &HeaderMap) -> Result<String, Refusal> {
        check_host(headers)?;
        check_site(headers)?;
        let session = self.keys.exchange(text(headers, TOKEN).unwrap_or_default());
        let session = session.map_err(|refused| match refused {
            Refused::Used => (
                StatusCode::FORBIDDEN,
                "This address was used before, and works once. Open the one that the terminal shows \
                 now. If you see the page nowhere, another user of this machine sees it: end it with \
                 Ctrl-C in the terminal.",
            ),
            Refused::Unknown => (
                StatusCode::UNAUTHORIZED,
                "This address is of another program, or incomplete. Open the one that the terminal \
                 shows.",
            ),
        })?;
        let is_recording = self.recording.is_some();
        Ok(serde_json::json!({"session": session.as_str(), "recording": is_recording}).to_string())
    }
}

const JSON: (HeaderName, HeaderValue) = (
    header::CONTENT_TYPE,
    HeaderValue::from_static("application/json"),
);

async fn page(State(served): State<Arc<ServedPage>>, request: Request) -> Response {
    if let Err(refusal) = check_host(request.headers()) {
        return answer(refusal);
    }
    let html = (
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    answer(([html], served.page.clone()))
}

async fn session(State(served): State<Arc<ServedPage>>, headers: HeaderMap) -> Response {
    match served.begin(&headers) {
        Err(refusal) => answer(refusal),
        Ok(session) => answer(([JSON], session)),
    }
}

async fn messages(
    State(served): State<Arc<ServedPage>>,
    lasting: Option<Extension<Lasting>>,
    request: Request,
) -> Response {
    if let Err(refusal) = served.check(&request) {
        return answer(refusal);
    }
    if let Some(Extension(lasting)) = lasting {
        lasting.begin();
    }
    answer(Sse::new(sent(served)).keep_alive(KeepAlive::default()))
}

async fn recording(State(served): State<Arc<ServedPage>>, request: Request) -> Response {
    if let Err(refusal) = served.check(&request) {
        return answer(refusal);
    }
    match &served.recording {
        Some(json) => answer(([JSON], json.clone())),
        None => answer((StatusCode::NOT_FOUND, "the page shows no recording\n")),
    }
}

async fn missing(State(served): State<Arc<ServedPage>>, request: Request) -> Response {
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
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A reader of the messages.
struct Position {
    served: Arc<ServedPage>,
    /// The number of the next message; `None` at the beginning.
    next: Option<u64>,
    ready: VecDeque<Arc<str>>,
    _viewer: Viewer,
}

/// The messages for one reader. The stream of a reader that is too slow ends; it connects again and
/// gets everything from the beginning.
fn sent(served: Arc<ServedPage>) -> impl Stream<Item = Result<Event, Infallible>> {
    let ready = VecDeque::from([(served.hello)()]);
    let viewer = served.out.viewer();
    stream::unfold(
        Position {
            served,
            next: None,
            ready,
            _viewer: viewer,
        },
        |mut at| async move {
            loop {
                if let Some(text) = at.ready.pop_front() {
                    return Some((Ok(Event::default().data(&*text)), at));
                }
                at.more().await?;
            }
        },
    )
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
