//! Accepts connections, and limits how many of them a socket has.
//!
//! A socket that is full makes room for a newcomer. It closes a connection of the peer that has the
//! most, and among these one that has not sent a request. So a peer that opens connections without
//! end only closes its own, and the others are answered. A connection that does lasting work is
//! never closed for another one.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

mod unix_listener;

/// The pause after a failed accept. The usual reason is that the process has no free descriptor:
/// without a pause, the loop would take a whole processor until there is one.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens.
pub trait Listener: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Accepts the next connection. The address is that of a peer on a network.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        let (stream, address) = TcpListener::accept(self).await?;
        // On a socket for both, IPv4 addresses come as IPv6 ones.
        Ok((stream, Some(address.ip().to_canonical())))
    }
}

/// Accepts the next connection for which there is a slot. It waits out errors.
pub async fn accept_admitted<L: Listener>(
    listener: &L,
    slots: &ConnectionSlots,
) -> (L::Stream, ConnectionSlot) {
    let mut is_failing = false;
    loop {
        match listener.accept().await {
            // Without a slot, the connection is closed.
            Ok((stream, peer)) => {
                is_failing = false;
                if let Some(slot) = slots.admit(peer).await {
                    return (stream, slot);
                }
            }
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                if !is_failing {
                    tracing::warn!(%error, "can't accept connections; trying again");
                }
                is_failing = true;
                // Its descriptor may be the one that is missing.
                slots.displace_idle();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// True if the client ended the connection before it was accepted.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
    )
}

/// The connections that a socket may have. Clones share them.
#[derive(Clone, Debug)]
pub struct ConnectionSlots {
    free: Arc<Semaphore>,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    /// By age: the oldest first.
    slots: BTreeMap<u64, HeldConnection>,
    next: u64,
}

#[derive(Debug)]
struct HeldConnection {
    peer: Option<IpAddr>,
    state: ConnectionState,
    displaced: CancellationToken,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    /// It has not sent a request.
    Waiting,
    /// Its request is being answered.
    Served,
    /// It does lasting work.
    Kept,
}

impl ConnectionSlots {
    /// Makes this many slots.
    pub fn new(most: usize) -> ConnectionSlots {
        ConnectionSlots {
            free: Arc::new(Semaphore::new(most)),
            held: Arc::default(),
        }
    }

    /// Gives a new connection a slot, another one's if there is no free one. `None` if all others
    /// are kept.
    pub async fn admit(&self, peer: Option<IpAddr>) -> Option<ConnectionSlot> {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                if !self.displace(peer) {
                    return None;
                }
                self.free.clone().acquire_owned().await.ok()?
            }
        };
        let displaced = CancellationToken::new();
        let entry = HeldConnection {
            peer,
            state: ConnectionState::Waiting,
            displaced: displaced.clone(),
        };
        let mut held = self.held.lock();
        let id = held.next;
        held.next += 1;
        held.slots.insert(id, entry);
        Some(ConnectionSlot {
            id,
            held: self.held.clone(),
            displaced,
            _permit: permit,
        })
    }

    /// Closes the connection that a newcomer displaces. False if all are kept.
    fn displace(&self, newcomer: Option<IpAddr>) -> bool {
        let held = self.held.lock();
        // One that is displaced already is about to leave.
        let rest = held
            .slots
            .iter()
            .filter(|(_, entry)| !entry.displaced.is_cancelled());
        let rest: Vec<_> = rest
            .map(|(id, entry)| (*id, entry.peer, entry.state))
            .collect();
        let chosen = choose_displaced(&rest, newcomer).and_then(|id| held.slots.get(&id));
        chosen.inspect(|entry| entry.displaced.cancel()).is_some()
    }

    /// Closes the oldest connection that has not sent a request.
    fn displace_idle(&self) {
        let held = self.held.lock();
        let idle = held
            .slots
            .values()
            .filter(|entry| !entry.displaced.is_cancelled());
        if let Some(oldest) = idle
            .into_iter()
            .find(|entry| entry.state == ConnectionState::Waiting)
        {
            oldest.displaced.cancel();
        }
    }
}

/// Chooses which of these connections, oldest first, a newcomer displaces.
fn choose_displaced(
    held: &[(u64, Option<IpAddr>, ConnectionState)],
    newcomer: Option<IpAddr>,
) -> Option<u64> {
    let mut chosen = None;
    for (id, peer, state) in held
        .iter()
        .filter(|(.., state)| *state != ConnectionState::Kept)
    {
        let same = held.iter().filter(|(_, other, _)| other == peer).count();
        let of_peer = same + usize::from(*peer == newcomer);
        let rank = (of_peer, *state == ConnectionState::Waiting);
        if chosen.is_none_or(|(best, _)| rank > best) {
            chosen = Some((rank, *id));
        }
    }
    chosen.map(|(_, id)| id)
}

/// The slot of a connection. Dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionSlot {
    id: u64,
    held: Arc<Mutex<Held>>,
    displaced: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    /// The connection has sent its request.
    pub fn serve(&self) {
        self.set(ConnectionState::Served);
    }

    /// The connection does lasting work from now on.
    pub fn keep(&self) {
        self.set(ConnectionState::Kept);
    }

    /// True if the connection does lasting work.
    pub fn is_kept(&self) -> bool {
        self.held
            .lock()
            .slots
            .get(&self.id)
            .is_some_and(|entry| entry.state == ConnectionState::Kept)
    }

    /// Is cancelled when another connection takes the slot.
    pub fn displaced(&self) -> &CancellationToken {
        &self.displaced
    }

    fn set(&self, state: ConnectionState) {
        if let Some(entry) = self.held.lock().slots.get_mut(&self.id) {
            entry.state = state;
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.held.lock().slots.remove(&self.id);
    }
}

#[cfg(test)]
mod tests;
