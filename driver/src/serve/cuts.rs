//! Serves cuts on a Unix socket for root alone, with `--enable-faults`.
//!
//! [`hostloop_report::cuts`] has the requests and the lines of the answers. `hostloop cuts` sends and
//! reads them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hostloop_controllers::socket::Name;
use hostloop_controllers::tasks::Tasks;
use hostloop_report::cuts::{CutsLine, CutsRequest, TakeCuts, cuts_beside};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::process::listen;
use crate::grpc::{Exploration, Server};

/// Clients at the same time.
const CLIENTS: usize = 16;
/// The longest request, in bytes.
const MAX_REQUEST: u64 = 4096;
/// How long a client may take for its request.
const REQUEST: Duration = Duration::from_secs(5);
/// How long a client may take to receive a line. A burst waits for it.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause after a failed accept, for example without a free file descriptor.
const RETRY: Duration = Duration::from_secs(1);

/// Starts serving beside the CSI socket, if volumes may have faults. A socket that can't be served
/// is only logged: volumes matter more than cuts. Dropping the returned name removes the socket.
pub(super) fn start(
    server: &Server,
    endpoint: &Path,
    stop: &CancellationToken,
    roles: &mut Tasks,
) -> Option<Name> {
    if !server.allows_faults() {
        return None;
    }
    let (listener, name) = match listen(&cuts_beside(endpoint)) {
        Ok(bound) => bound,
        Err(error) => {
            tracing::warn!(%error, "cuts are not served");
            return None;
        }
    };
    let (server, stop) = (server.clone(), stop.clone());
    roles.keep("serving cuts", async move {
        let accepting = accept(listener, server, stop.clone());
        stop.run_until_cancelled(accepting).await;
    });
    Some(name)
}

async fn accept(listener: UnixListener, server: Server, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(RETRY).await;
            continue;
        };
        let place = places.clone().try_acquire_owned();
        let (server, stop) = (server.clone(), stop.clone());
        tokio::spawn(async move {
            // A client that hangs up or stalls ends its burst, and nothing else.
            let _ended = match place {
                Ok(_place) => answer(stream, &server, &stop).await,
                Err(_) => refuse(stream).await,
            };
        });
    }
}

async fn refuse(mut stream: UnixStream) -> io::Result<()> {
    let error = format!("{CLIENTS} clients are served already: try again");
    write(&mut stream, &CutsLine::Refused { error }).await
}

async fn answer(stream: UnixStream, server: &Server, stop: &CancellationToken) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let text = timeout(REQUEST, request(&mut reader)).await??;
    let request = match serde_json::from_str::<CutsRequest>(&text) {
        Ok(request) => request,
        Err(error) => {
            let error = format!("not a request of this version of the driver: {error}");
            return write(&mut writer, &CutsLine::Refused { error }).await;
        }
    };
    let answered = match request {
        CutsRequest::Take(request) => {
            return take(request, &mut reader, &mut writer, server, stop).await;
        }
        CutsRequest::List { exploration } => server
            .list_cuts(exploration.as_deref())
            .map(CutsLine::Listed),
        CutsRequest::Keep { snapshot } => server.keep_cut(&snapshot).await.map(CutsLine::Kept),
        CutsRequest::Drop { exploration } => {
            server.drop_cuts(&exploration).await.map(CutsLine::Dropped)
        }
    };
    write(&mut writer, &answered.unwrap_or_else(refused)).await
}

/// Reads the request of a new client.
async fn request(reader: &mut OwnedReadHalf) -> io::Result<String> {
    let mut text = String::new();
    BufReader::new(reader.take(MAX_REQUEST))
        .read_line(&mut text)
        .await?;
    Ok(text)
}

fn refused(why: Status) -> CutsLine {
    CutsLine::Refused {
        error: why.message().to_owned(),
    }
}

/// Takes cuts until all are taken, the client hangs up, or the driver stops.
async fn take(
    request: TakeCuts,
    reader: &mut OwnedReadHalf,
    writer: &mut OwnedWriteHalf,
    server: &Server,
    stop: &CancellationToken,
) -> io::Result<()> {
    let mut exploration = match server.explore(request).await {
        Ok(exploration) => exploration,
        Err(why) => return write(writer, &refused(why)).await,
    };
    let end = exploration.stop();
    let ending = async {
        tokio::select! {
            () = hung_up(reader) => {}
            () = stop.cancelled() => {}
        }
        end.cancel();
        // A cut that is being taken is waited for: its client may still read of it.
        std::future::pending::<io::Result<()>>().await
    };
    tokio::select! {
        sent = send(&mut exploration, writer) => sent,
        never = ending => never,
    }
}

async fn send(exploration: &mut Exploration, writer: &mut OwnedWriteHalf) -> io::Result<()> {
    write(writer, &CutsLine::Begun(exploration.begun())).await?;
    loop {
        let line = exploration.next().await;
        write(writer, &line).await?;
        if matches!(line, CutsLine::Ended(_)) {
            return Ok(());
        }
    }
}

/// Resolves when the client closes its end.
async fn hung_up(reader: &mut OwnedReadHalf) {
    let mut ignored = [0; 64];
    while reader.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
}

/// Writes a line, and gives up on a client that takes none.
async fn write(writer: &mut (impl AsyncWriteExt + Unpin), line: &CutsLine) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    timeout(PATIENCE, writer.write_all(&bytes)).await?
}
