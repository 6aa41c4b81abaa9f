//! The limits of gRPC servers.
//!
//! Only root reaches the Unix sockets, so they expect faults rather than attacks: clients that open
//! connections and forget them, or that stop answering. Anyone may reach a port: there, the connection
//! of a client without a certificate is safe from newcomers only while it has a stream that was allowed.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Context;
use std::time::Duration;

use futures::stream::{self, Stream};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::Server;

use crate::connections::{ConnectionSlot, ConnectionSlots, Listener, accept_admitted};
use crate::filtered_stream::{Filter, FilteredStream};

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
        let (stream, slot) = accept_admitted(&listener, &slots).await;
        Some((Ok(Admitted::new(stream, slot)), (listener, slots)))
    })
}

/// A connection with a slot. Reading and writing fail once another one takes the slot. With a trusted
/// client, that can only happen before its greeting.
pub type Admitted<S> = FilteredStream<S, ConnectionAdmission>;

/// The slot of a connection, and what is missing of the client's greeting.
pub struct ConnectionAdmission {
    slot: Arc<ConnectionSlot>,
    displaced: Pin<Box<WaitForCancellationFutureOwned>>,
    /// True if the greeting alone keeps the slot.
    is_trusted: bool,
    calls: CallConnection,
    /// The end of the wait for the greeting, and the bytes of it that are still missing.
    greeting: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Admitted<S> {
    /// A connection on a Unix socket.
    pub(crate) fn new(stream: S, slot: ConnectionSlot) -> Self {
        Admitted::of_network(stream, slot, None, true)
    }

    /// A connection of a network. The greeting of a trusted client keeps the slot.
    pub(crate) fn of_network(
        stream: S,
        slot: ConnectionSlot,
        peer: Option<IpAddr>,
        is_trusted: bool,
    ) -> Self {
        let displaced = Box::pin(slot.displaced().clone().cancelled_owned());
        let greeting = Some((Box::pin(sleep(GREETING)), PREFACE));
        let slot = Arc::new(slot);
        let calls = CallConnection {
            peer,
            slot: Arc::downgrade(&slot),
            streams: Arc::default(),
        };
        FilteredStream {
            stream,
            filter: ConnectionAdmission {
                slot,
                displaced,
                is_trusted,
                calls,
                greeting,
            },
        }
    }
}

/// The connection of a call, in the extensions of its request.
#[derive(Clone, Debug)]
pub struct CallConnection {
    /// The caller's address; `None` on a Unix socket.
    pub peer: Option<IpAddr>,
    slot: Weak<ConnectionSlot>,
    /// The streams that keep the connection.
    streams: Arc<Mutex<usize>>,
}

impl CallConnection {
    /// Keeps newcomers from taking the connection's slot until the returned value is dropped.
    pub fn keep(&self) -> KeptConnection {
        let mut streams = self.streams.lock();
        *streams += 1;
        if let Some(slot) = self.slot.upgrade() {
            slot.keep();
        }
        KeptConnection(self.clone())
    }
}

/// Keeps a connection from newcomers.
#[derive(Debug)]
pub struct KeptConnection(CallConnection);

impl Drop for KeptConnection {
    fn drop(&mut self) {
        let mut streams = self.0.streams.lock();
        *streams -= 1;
        if *streams == 0
            && let Some(slot) = self.0.slot.upgrade()
        {
            slot.serve();
        }
    }
}

impl ConnectionAdmission {
    /// True if no newcomer gets the slot any more.
    fn is_safe(&self) -> bool {
        self.is_trusted && self.greeting.is_none()
    }
}

impl Filter for ConnectionAdmission {
    type ConnectInfo = CallConnection;

    fn connect_info(&self) -> CallConnection {
        self.calls.clone()
    }

    /// Fails if another connection takes the slot, or the greeting takes too long.
    fn before_read(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.is_safe() {
            return Ok(());
        }
        if self.displaced.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if let Some((overdue, _)) = &mut self.greeting
            && overdue.as_mut().poll(cx).is_ready()
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Fails if another connection takes the slot. A client that takes no answers keeps HTTP/2 from
    /// reading, and would keep the slot.
    fn before_write(&mut self) -> io::Result<()> {
        if self.is_safe() || !self.slot.displaced().is_cancelled() {
            Ok(())
        } else {
            Err(io::ErrorKind::ConnectionAborted.into())
        }
    }

    /// Counts bytes of the greeting.
    fn read(&mut self, bytes: &mut [u8]) {
        if let Some((_, missing)) = &mut self.greeting {
            *missing = missing.saturating_sub(bytes.len());
            if *missing == 0 {
                self.greeting = None;
                if self.is_trusted {
                    self.slot.keep();
                } else {
                    self.slot.serve();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
