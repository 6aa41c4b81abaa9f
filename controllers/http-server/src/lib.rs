//! Serves HTTP, also to hostile clients.
//!
//! A connection has one request. Its head must come soon and be small, no body is read, and the
//! answer must be taken in time. A handler may extend that by [`Lasting`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

pub mod connections;

use connections::{ConnectionSlot, ConnectionSlots, Listener, accept_admitted};

/// Connections of an endpoint on the network, such as that for liveness.
pub const PUBLIC_CONNECTIONS: usize = 32;
/// How long a client may take for the head of its request.
const HEAD: Duration = Duration::from_secs(10);
/// The longest head, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// The most fields of a head.
const MAX_FIELDS: usize = 64;
/// How long answers under way may delay the end.
const GRACE: Duration = Duration::from_secs(1);

/// The limits of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most connections.
    pub connections: usize,
    /// How long an answer may take, until the client has it.
    pub answer: Duration,
}

/// An extension of each request: the handler of a long answer says so.
#[derive(Clone)]
pub struct Lasting(Arc<ConnectionSlot>);

impl Lasting {
    /// The answer may take any time. No other connection displaces this one.
    pub fn begin(&self) {
        self.0.keep();
    }
}

/// Serves until `stop` resolves.
pub async fn serve<L: Listener>(
    listener: L,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let slots = ConnectionSlots::new(limits.connections);
    let connections = TaskTracker::new();
    // Ends the connections with this function, too.
    let end = CancellationToken::new();
    let _ends = end.clone().drop_guard();
    let accepting = async {
        loop {
            let (stream, slot) = accept_admitted(&listener, &slots).await;
            let served = serve_one(stream, slot, router.clone(), limits.answer);
            let end = end.clone();
            connections.spawn(async move { end.run_until_cancelled(served).await });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop => {}
    }
    drop(listener);
    connections.close();
    let _ = tokio::time::timeout(GRACE, connections.wait()).await;
}

async fn serve_one<S>(stream: S, slot: ConnectionSlot, router: Router, answer: Duration)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let slot = Arc::new(slot);
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        slot.serve();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Lasting(slot.clone()));
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.oneshot(request).await.unwrap_or_else(|e| match e {})) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_FIELDS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let overdue = async {
        tokio::time::sleep(HEAD + answer).await;
        if slot.is_kept() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // A client that hangs up or sends nonsense ends its connection, and nothing else.
        _ended = served => {}
        () = slot.displaced().cancelled() => {}
        () = overdue => {}
    }
}

#[cfg(test)]
mod tests;
