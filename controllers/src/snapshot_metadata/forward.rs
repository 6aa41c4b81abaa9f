//! Passes a stream from the node that has the snapshot on to the caller.
//!
//! Each stream has a connection of its own: a caller that hangs up ends it, and the node stops reading
//! at once. A caller that takes nothing for a minute is cut off, and so is a stream of ten minutes.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::Stream;
use hostloop_proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use hostloop_report::error_chain;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status, Streaming};

use super::metrics::RunningCall;
use crate::api::message::cut;
use crate::node_endpoint::NodeEndpoint;
use crate::tls::certificates::Identity;
use crate::tls::config;

/// How long it may take to connect to a node.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a node is asked whether it still answers, and how long that answer may take.
const PING: Duration = Duration::from_secs(20);
/// The largest message of a node: the driver's have 30 KiB at most.
const MAX_MESSAGE: usize = 64 << 10;
/// The most blocks of a message: the driver's have 1024. In memory, a block takes eight times as much
/// as the two bytes of an empty one in a message.
const MAX_BLOCKS: usize = 4096;
/// The most that a node may send ahead of the caller, besides [`AHEAD`].
const WINDOW: u32 = 256 << 10;
/// The longest message of a node's error that is passed on.
const MAX_ERROR: usize = 1024;
/// Messages read ahead of the caller.
const AHEAD: usize = 4;
/// How long a caller may take nothing.
const STALL: Duration = Duration::from_secs(60);
/// How long a stream may last, as upstream's. The caller resumes with a new token.
const LONGEST: Duration = Duration::from_secs(600);

/// The stream of answers to a caller.
#[derive(Debug)]
pub(super) struct Answers<M>(Arc<Mutex<Queue<M>>>);

/// What a caller has not taken yet.
#[derive(Debug)]
enum Queue<M> {
    Open(mpsc::Receiver<Result<M, Status>>),
    /// `None` once the caller has taken the error.
    Cut(Option<Status>),
}

impl<M> Queue<M> {
    /// Ends the stream of a caller that leaves messages, and frees them: it may never take them, and keep
    /// its connection. A caller that waits for a message gets the error as the last one.
    fn cut(&mut self, status: &Status) {
        let has_left = matches!(self, Queue::Open(messages) if !messages.is_empty());
        if has_left {
            *self = Queue::Cut(Some(status.clone()));
        }
    }
}

impl<M> Stream for Answers<M> {
    type Item = Result<M, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut *self.0.lock() {
            Queue::Open(messages) => messages.poll_recv(cx),
            Queue::Cut(status) => Poll::Ready(status.take().map(Err)),
        }
    }
}

/// A client of a node.
pub(super) type NodeClient = SnapshotMetadataClient<Channel>;

/// Opens a connection to an address.
pub(super) type Dial = fn(SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>>;

/// Opens a connection to the address as it is.
pub(super) fn dial(address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
    TcpStream::connect(address).boxed()
}

/// Connects to a node, as the leader with this certificate.
pub(super) async fn connect(
    node: NodeEndpoint,
    identity: &Identity,
    dial: Dial,
) -> Result<NodeClient, Status> {
    let config = config::client(identity, node.fingerprint)
        .map_err(|error| Status::internal(format!("cannot use the own certificate: {error}")))?;
    let connector = tower::service_fn(move |_: Uri| {
        let connector = TlsConnector::from(config.clone());
        async move {
            let stream = dial(node.address).await?;
            stream.set_nodelay(true)?;
            let name = ServerName::from(node.address.ip());
            let stream = connector.connect(name, stream).await?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://node")
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    let connected = timeout(CONNECT, endpoint.connect_with_connector(connector)).await;
    let channel = match connected {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return Err(unreachable(node, &error_chain(&error))),
        Err(_) => return Err(unreachable(node, "no answer")),
    };
    Ok(SnapshotMetadataClient::new(channel).max_decoding_message_size(MAX_MESSAGE))
}

/// The caller learns no address: that is in the log.
fn unreachable(node: NodeEndpoint, why: &str) -> Status {
    tracing::warn!(address = %node.address, why, "cannot connect to a node for changed blocks");
    Status::unavailable("cannot connect to the node that has the snapshot: try again")
}

/// The caller's status for one of a node or of the connection to it. It has the code and message of
/// the driver, as upstream's, and nothing else that came along.
pub(super) fn status_for_caller(status: &Status) -> Status {
    if std::error::Error::source(status).is_some() {
        return Status::unavailable(
            "the connection to the node that has the snapshot broke: resume behind the last range",
        );
    }
    let code = match status.code() {
        Code::Unknown => Code::Internal,
        code => code,
    };
    Status::new(code, cut(status.message(), MAX_ERROR))
}

/// Passes the messages of a node on until either side ends, `stop` is set, or the stream has lasted
/// too long. `blocks` is the number of a message's blocks. It holds `places` meanwhile, and ends the
/// running call.
pub(super) fn pass_on<M, P>(
    messages: Streaming<M>,
    blocks: fn(&M) -> usize,
    places: P,
    running: RunningCall,
    stop: CancellationToken,
) -> Answers<M>
where
    M: Send + 'static,
    P: Send + 'static,
{
    let (sender, receiver) = mpsc::channel(AHEAD + 1);
    let last = LastAnswer::reserve(&sender);
    let answers = Answers(Arc::new(Mutex::new(Queue::Open(receiver))));
    let queue = Arc::downgrade(&answers.0);
    tokio::spawn(async move {
        let _places = places;
        let ended = tokio::select! {
            () = sender.closed() => Err(hung_up()),
            () = stop.cancelled() => Err(stopping()),
            passed = timeout(LONGEST, pass_all(messages, blocks, &sender)) => {
                passed.unwrap_or_else(|_| Err(too_long()))
            }
        };
        running.end(ended.as_ref().err().map_or(Code::Ok, Status::code));
        if let (Err(status), Some(queue)) = (&ended, queue.upgrade()) {
            queue.lock().cut(status);
        }
        last.send(ended);
    });
    answers
}

async fn pass_all<M>(
    mut messages: Streaming<M>,
    blocks: fn(&M) -> usize,
    sender: &mpsc::Sender<Result<M, Status>>,
) -> Result<(), Status> {
    loop {
        let message = match messages.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return taken(sender).await,
            Err(status) => {
                taken(sender).await?;
                return Err(status_for_caller(&status));
            }
        };
        check_blocks(blocks(&message))?;
        match sender.send_timeout(Ok(message), STALL).await {
            Ok(()) => {}
            Err(mpsc::error::SendTimeoutError::Closed(_)) => return Err(hung_up()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => return Err(stalled()),
        }
    }
}

/// Waits until the caller has taken all messages. Until then, its stream keeps its places. Otherwise, a
/// caller could begin streams without end, and leave the messages of each in memory.
async fn taken<M>(sender: &mpsc::Sender<Result<M, Status>>) -> Result<(), Status> {
    for places in 1..=AHEAD {
        match timeout(STALL, sender.reserve_many(places)).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Err(hung_up()),
            Err(_) => return Err(stalled()),
        }
    }
    Ok(())
}

/// The caller does not get it.
fn hung_up() -> Status {
    Status::cancelled("the caller hung up")
}

fn stopping() -> Status {
    Status::unavailable("the service stops: resume behind the last range")
}

fn too_long() -> Status {
    Status::deadline_exceeded(format!(
        "the stream lasted {} s: resume behind the last range with a new token",
        LONGEST.as_secs()
    ))
}

fn stalled() -> Status {
    Status::deadline_exceeded(format!(
        "nothing was taken from the stream for {} s: resume behind the last range",
        STALL.as_secs()
    ))
}

/// A place in the channel for the error that ends a stream. Without it, a stream that is cut off would
/// look complete.
struct LastAnswer<M>(Option<OwnedPermit<Result<M, Status>>>);

impl<M> LastAnswer<M> {
    fn reserve(sender: &mpsc::Sender<Result<M, Status>>) -> Self {
        LastAnswer(sender.clone().try_reserve_owned().ok())
    }

    fn send(mut self, ended: Result<(), Status>) {
        if let Some(place) = self.0.take()
            && let Err(status) = ended
        {
            place.send(Err(status));
        }
    }
}

impl<M> Drop for LastAnswer<M> {
    fn drop(&mut self) {
        if let Some(place) = self.0.take() {
            place.send(Err(stopping()));
        }
    }
}

/// Fails if a message has more blocks than a driver sends.
fn check_blocks(number: usize) -> Result<(), Status> {
    if number <= MAX_BLOCKS {
        return Ok(());
    }
    Err(Status::internal(format!(
        "the node that has the snapshot sent {number} blocks in a message: more than {MAX_BLOCKS}"
    )))
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    #[test]
    fn codes_of_the_driver_pass() {
        for (code, expected) in [
            (Code::NotFound, Code::NotFound),
            (Code::OutOfRange, Code::OutOfRange),
            (Code::FailedPrecondition, Code::FailedPrecondition),
            (Code::InvalidArgument, Code::InvalidArgument),
            (Code::Unknown, Code::Internal),
        ] {
            let passed = status_for_caller(&Status::new(code, "why"));
            assert_eq!((passed.code(), passed.message()), (expected, "why"));
        }
        let broken = Status::from_error(Box::new(io::Error::other("10.0.0.7: reset")));
        let passed = status_for_caller(&broken);
        assert_eq!(passed.code(), Code::Unavailable);
        assert!(!passed.message().contains("10.0.0.7"));
    }

    #[test]
    fn a_node_cannot_fill_the_memory() {
        for (number, is_passed) in [(0, true), (MAX_BLOCKS, true), (MAX_BLOCKS + 1, false)] {
            assert_eq!(check_blocks(number).is_ok(), is_passed, "{number}");
        }
        let long = Status::new(Code::Internal, "x".repeat(9 * MAX_ERROR));
        assert!(status_for_caller(&long).message().len() <= MAX_ERROR);
    }

    #[tokio::test]
    async fn a_stream_that_is_cut_off_has_an_error() {
        let (sender, mut receiver) = mpsc::channel::<Result<(), Status>>(AHEAD + 1);
        let last = LastAnswer::reserve(&sender);
        for _ in 0..AHEAD {
            sender.try_send(Ok(())).unwrap();
        }
        assert!(sender.try_send(Ok(())).is_err(), "the last place is kept");
        drop((sender, last));
        let mut answers = Vec::new();
        while let Some(answer) = receiver.recv().await {
            answers.push(answer.map_err(|status| status.code()));
        }
        assert_eq!(answers.pop(), Some(Err(Code::Unavailable)));
        assert_eq!(answers, [Ok(()); AHEAD]);

        let (sender, mut receiver) = mpsc::channel::<Result<(), Status>>(1);
        LastAnswer::reserve(&sender).send(Ok(()));
        drop(sender);
        assert!(receiver.recv().await.is_none());
    }

    /// A client may keep its connections open for good, with sixteen streams each.
    #[tokio::test]
    async fn what_a_caller_does_not_take_is_freed() {
        for left in [0, 1, AHEAD] {
            let message = Arc::new(());
            let (sender, receiver) = mpsc::channel::<Result<Arc<()>, Status>>(AHEAD + 1);
            let last = LastAnswer::reserve(&sender);
            for _ in 0..left {
                sender.try_send(Ok(message.clone())).unwrap();
            }
            let mut answers = Answers(Arc::new(Mutex::new(Queue::Open(receiver))));
            answers.0.lock().cut(&stalled());
            assert_eq!(Arc::strong_count(&message), 1, "{left}");
            last.send(Err(stalled()));
            drop(sender);
            let last = answers.next().await.unwrap();
            assert_eq!(last.unwrap_err().code(), Code::DeadlineExceeded, "{left}");
            assert!(answers.next().await.is_none(), "{left}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_lasts_until_its_caller_has_taken_all() {
        let (sender, mut receiver) = mpsc::channel::<Result<(), Status>>(AHEAD + 1);
        let _last = LastAnswer::reserve(&sender);
        taken(&sender).await.unwrap();
        for _ in 0..AHEAD {
            sender.try_send(Ok(())).unwrap();
        }
        // It is slow.
        let taking = async {
            for _ in 0..AHEAD {
                tokio::time::sleep(STALL - Duration::from_secs(1)).await;
                receiver.recv().await;
            }
        };
        let (all, ()) = tokio::join!(taken(&sender), taking);
        all.unwrap();
        sender.try_send(Ok(())).unwrap();
        let left = taken(&sender).await.unwrap_err();
        assert_eq!(left.code(), Code::DeadlineExceeded);
        drop(receiver);
        let gone = taken(&sender).await.unwrap_err();
        assert_eq!(gone.code(), Code::Cancelled);
    }
}
