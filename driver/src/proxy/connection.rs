//! A client's connection, and that to the driver behind it.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Proxy;
use super::answer_body::AnswerBody;
use super::relay::relay;
use super::request_body::RequestBody;

/// The most calls of one connection. The rest wait in the client.
const CALLS: u32 = 1024;
/// The longest header of a call and trailer of an answer, in bytes. Drivers put the output of
/// programs into the message of an error.
const MAX_HEADER: u32 = 256 << 10;
/// How often a client is asked whether it still answers.
const PING: Duration = Duration::from_secs(60);
/// How long that answer may take.
const PONG: Duration = Duration::from_secs(20);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("the driver's socket {path}: {source}")]
    Driver { path: PathBuf, source: io::Error },
    #[error("HTTP/2 with the driver: {0}")]
    Handshake(#[source] hyper::Error),
    #[error("HTTP/2 with the client: {0}")]
    Client(#[source] hyper::Error),
}

/// Serves a client until it, the driver or the process ends the connection.
pub(super) async fn serve<C>(proxy: Arc<Proxy>, caller: C, stop: CancellationToken)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match pass(proxy, caller, stop).await {
        Ok(()) => {}
        Err(error @ ConnectionError::Client(_)) => tracing::debug!(%error, "a connection ended"),
        // The client sees its connection end, and tries again as it would with the driver.
        Err(error) => tracing::warn!(%error, "a client is turned away"),
    }
}

async fn pass<C>(
    proxy: Arc<Proxy>,
    caller: C,
    stop: CancellationToken,
) -> Result<(), ConnectionError>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let driver = UnixStream::connect(&proxy.driver).await;
    let driver = driver.map_err(|source| ConnectionError::Driver {
        path: proxy.driver.clone(),
        source,
    })?;
    let (sender, driver): (client::SendRequest<RequestBody>, _) =
        client::Builder::new(TokioExecutor::new())
            .max_header_list_size(MAX_HEADER)
            .handshake(TokioIo::new(driver))
            .await
            .map_err(ConnectionError::Handshake)?;
    let broken = CancellationToken::new();
    let ends = broken.clone().drop_guard();
    // It ends with the client's connection.
    let _driver = AbortOnDropHandle::new(tokio::spawn(async move {
        let _ends = ends;
        if let Err(error) = driver.await {
            tracing::debug!(%error, "the connection to the driver broke");
        }
    }));
    let service = service_fn(move |request: Request<Incoming>| {
        let (proxy, sender) = (proxy.clone(), sender.clone());
        async move {
            let answer: Response<AnswerBody> = relay(&proxy, sender, request).await;
            Ok::<_, Infallible>(answer)
        }
    });
    let client = server::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .max_concurrent_streams(CALLS)
        .max_header_list_size(MAX_HEADER)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(caller), service);
    let mut client = pin!(client);
    tokio::select! {
        ended = client.as_mut() => return ended.map_err(ConnectionError::Client),
        () = broken.cancelled() => {}
        () = stop.cancelled() => {}
    }
    // Calls under way end first.
    client.as_mut().graceful_shutdown();
    client.await.map_err(ConnectionError::Client)
}
