//! The limits of gRPC servers on Unix sockets.
//!
//! Only root reaches these sockets, so they expect faults rather than attacks: clients that open
//! connections and forget them, or that stop answering.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use crate::connections::{ConnectionSlot, ConnectionSlots, Listener, next};

/// How long a new client may take until it speaks HTTP/2.
const GREETING: Duration = Duration::from_secs(10);
/// The length of HTTP/2's connection preface.
const PREFACE: usize = 24;
/// The most calls of one connection. The rest wait in the client.
const CALLS: u32 = 1024;
/// The longest header of a call, in bytes.
const MAX_HEADER: u32 = 16 << 10;
/// How often a client is asked whether it still answers.
const PING: Duration = Duration::from_secs(60);
/// How long that answer may take.
const PONG: Duration = Duration::from_secs(20);

/// A server with these limits.
pub fn builder() -> Server {
    Server::builder()
        .max_concurrent_streams(CALLS)
        .http2_max_header_list_size(MAX_HEADER)
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PONG))
}

/// The connections of a listener, at most `most` at a time. The stream has no errors.
pub fn connections<L: Listener>(
    listener: L,
    most: usize,
) -> impl Stream<Item = io::Result<Admitted<L::Stream>>> {
    let slots = ConnectionSlots::new(most);
    stream::unfold((listener, slots), |(listener, slots)| async {
        let (stream, slot) = next(&listener, &slots).await;
        Some((Ok(Admitted::new(stream, slot)), (listener, slots)))
    })
}

/// A connection with a slot. Reading from it fails once another one takes the slot, which can
/// only happen before the client has greeted.
pub struct Admitted<S> {
    stream: S,
    slot: ConnectionSlot,
    displaced: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The end of the wait for the greeting, and the bytes of it that are still missing.
    greeting: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Admitted<S> {
    pub(crate) fn new(stream: S, slot: ConnectionSlot) -> Self {
        let displaced = Box::pin(slot.displaced().clone().cancelled_owned());
        let greeting = Some((Box::pin(sleep(GREETING)), PREFACE));
        Admitted { stream, slot, displaced, greeting }
    }

    /// Fails if the connection is to end before the greeting.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some((overdue, _)) = &mut self.greeting else {
            return Ok(());
        };
        if self.displaced.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if overdue.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Counts bytes of the greeting.
    fn heard(&mut self, bytes: usize) {
        if let Some((_, missing)) = &mut self.greeting {
            *missing = missing.saturating_sub(bytes);
            if *missing == 0 {
                self.greeting = None;
                self.slot.keep();
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Admitted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.heard(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Admitted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S> Connected for Admitted<S> {
    /// Only root can connect, so the peer's identity is not needed.
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

#[cfg(test)]
mod tests;
