//! The limits of gRPC servers on Unix sockets.
//!
//! Only root reaches these sockets, so they expect faults rather than attacks: clients that open
//! connections and forget them, or that stop answering.

use std::io;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use futures::stream::{self, Stream};
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

/// A connection with a slot. Reading from it fails once another one takes the slot, which can
/// only happen before the client has greeted.
pub type Admitted<S> = FilteredStream<S, ConnectionAdmission>;

/// The slot of a connection, and what is missing of the client's greeting.
pub struct ConnectionAdmission {
    slot: ConnectionSlot,
    displaced: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The end of the wait for the greeting, and the bytes of it that are still missing.
    greeting: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Admitted<S> {
    pub(crate) fn new(stream: S, slot: ConnectionSlot) -> Self {
        let displaced = Box::pin(slot.displaced().clone().cancelled_owned());
        let greeting = Some((Box::pin(sleep(GREETING)), PREFACE));
        FilteredStream {
            stream,
            filter: ConnectionAdmission {
                slot,
                displaced,
                greeting,
            },
        }
    }
}

impl Filter for ConnectionAdmission {
    /// Fails if the connection is to end before the greeting.
    fn before_read(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
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
    fn read(&mut self, bytes: &mut [u8]) {
        if let Some((_, missing)) = &mut self.greeting {
            *missing = missing.saturating_sub(bytes.len());
            if *missing == 0 {
                self.greeting = None;
                self.slot.keep();
            }
        }
    }
}

#[cfg(test)]
mod tests;
