//! Sends events to the readers of a Unix socket.
//!
//! A reader writes one line, a [`Request`]. It gets a [`Header`] and then events, one JSON object a
//! line. An empty line shows a reader without new events that the stream lives.

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use hostloop_report::events::{Header, Process, Request};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::event::Event;
use crate::{FORMAT, RING, Ring};

/// Readers at the same time.
const READERS: usize = 16;
/// The most events of one write.
const BATCH: usize = 128;
/// The longest request, in bytes.
const MAX_REQUEST: u64 = 4096;
/// How long a reader may take for its request. It has a place meanwhile, and a few silent ones
/// would keep all others out.
const REQUEST: Duration = Duration::from_secs(5);
/// How long a reader may take to receive a batch.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause after a new event, so that one write has several.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a stream may have no line.
const SILENCE: Duration = Duration::from_secs(10);
/// The longest stream. Then a reader connects again where it stopped, so that a forgotten reader
/// does not take a place forever.
const LIFE: Duration = Duration::from_secs(3600);
/// The pause after a failed accept, for example without a free file descriptor.
const RETRY: Duration = Duration::from_secs(1);

/// A line with an event.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ProcessEvent")]
pub struct Line<'a> {
    /// The number of the event in its ring.
    seq: u64,
    /// The ring. It differs after each start of the process.
    boot: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

impl<'a> Line<'a> {
    /// The line of a ring's event with this number.
    pub fn of(ring: &'a Ring, seq: u64, event: &'a Event) -> Line<'a> {
        let boot = ring.boot();
        Line { seq, boot, event }
    }
}

/// The first line of a stream that is refused.
#[derive(Serialize)]
struct Refusal {
    error: String,
}

/// Serves the events of this process until `stop` resolves.
pub async fn serve(listener: UnixListener, process: Process, stop: impl Future<Output = ()>) {
    tokio::select! {
        () = accept(listener, &RING, process, READERS) => {}
        () = stop => {}
    }
}

async fn accept(listener: UnixListener, ring: &'static Ring, process: Process, readers: usize) {
    let places = Arc::new(Semaphore::new(readers));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(RETRY).await;
            continue;
        };
        let place = places.clone().try_acquire_owned();
        let process = process.clone();
        tokio::spawn(async move {
            // A reader that hangs up or stalls ends its stream, and nothing else.
            let _ended = match place {
                Ok(_place) => send(stream, ring, process).await,
                Err(_) => refuse(stream, readers).await,
            };
        });
    }
}

async fn refuse(mut stream: UnixStream, readers: usize) -> io::Result<()> {
    let error = format!("{readers} readers follow the events already; end one of them");
    write(&mut stream, &line(&Refusal { error })?).await
}

async fn send(stream: UnixStream, ring: &Ring, process: Process) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let request = timeout(REQUEST, request(&mut reader)).await??;
    let known = request.boot.is_empty() || request.boot == ring.boot();
    let mut next = ring.since(if known { request.from } else { 0 }, 0).first;
    write(&mut writer, &header_line(ring, process, next)?).await?;
    if !request.follow {
        return send_present(&mut writer, ring, &mut next).await;
    }
    tokio::select! {
        ended = follow(&mut writer, ring, next) => ended,
        () = hung_up(&mut reader) => Ok(()),
        () = sleep(LIFE) => Ok(()),
    }
}

/// Reads the request of a new reader.
async fn request(reader: &mut OwnedReadHalf) -> io::Result<Request> {
    let mut text = String::new();
    BufReader::new(reader.take(MAX_REQUEST))
        .read_line(&mut text)
        .await?;
    Ok(serde_json::from_str(&text)?)
}

/// Resolves when the reader closes its end.
async fn hung_up(reader: &mut OwnedReadHalf) {
    let mut ignored = [0; 64];
    while reader.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
}

/// Sends the events that exist now.
async fn send_present(writer: &mut OwnedWriteHalf, ring: &Ring, next: &mut u64) -> io::Result<()> {
    let end = ring.since(u64::MAX, 0).first;
    while *next < end && send_batch(writer, ring, next).await? {}
    Ok(())
}

/// Sends events as they come.
async fn follow(writer: &mut OwnedWriteHalf, ring: &Ring, mut next: u64) -> io::Result<()> {
    let mut heard = Instant::now();
    loop {
        let changed = ring.changed();
        tokio::pin!(changed);
        // From here on, no event is missed.
        changed.as_mut().enable();
        if send_batch(writer, ring, &mut next).await? {
            heard = Instant::now();
            continue;
        }
        let quiet = SILENCE.saturating_sub(heard.elapsed());
        match timeout(quiet, changed).await {
            Ok(()) => sleep(PAUSE).await,
            Err(_) => {
                write(writer, b"\n").await?;
                heard = Instant::now();
            }
        }
    }
}

/// Sends the next events; false if there are none.
async fn send_batch(writer: &mut OwnedWriteHalf, ring: &Ring, next: &mut u64) -> io::Result<bool> {
    let lines = next_lines(ring, next)?;
    write(writer, &lines).await?;
    Ok(!lines.is_empty())
}

/// The first line of a stream.
pub fn header_line(ring: &Ring, process: Process, from: u64) -> io::Result<Vec<u8>> {
    line(&Header {
        events: FORMAT.to_owned(),
        boot: ring.boot().to_owned(),
        process,
        from,
    })
}

/// The lines of the next events, as many as one write may have; empty if there are none.
pub fn next_lines(ring: &Ring, next: &mut u64) -> io::Result<Vec<u8>> {
    let batch = ring.since(*next, BATCH);
    *next = batch.next();
    let mut lines = Vec::new();
    for (seq, event) in (batch.first..).zip(&batch.events) {
        lines.extend(line(&Line::of(ring, seq, event))?);
    }
    Ok(lines)
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Writes all bytes, and ends the stream of a reader that takes none.
async fn write(writer: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) -> io::Result<()> {
    timeout(PATIENCE, writer.write_all(bytes)).await?
}

#[cfg(test)]
mod tests;
