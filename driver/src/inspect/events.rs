//! `hostloop events`: what the driver did last, and what it does.

use std::io;
use std::process::ExitCode;

use hostloop_events::read::{self, Said};
use hostloop_events::serve::Request;
use hostloop_terminal::terminal;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{block_on, input_ends};
use crate::cli::EventsArgs;

/// Why the events can't be printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No thread for the socket.
    #[error("starting threads: {0}")]
    Threads(#[source] io::Error),
    /// The events can't be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// Prints events until there are none, or until the person ends it. Blocks.
pub fn run(args: &EventsArgs) -> Result<ExitCode, Error> {
    let printed = block_on(async {
        tokio::select! {
            printed = print(args) => printed,
            () = input_ends(), if args.until_eof => Ok(()),
        }
    });
    match printed.map_err(Error::Threads)? {
        Err(Error::Print(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn print(args: &EventsArgs) -> Result<(), Error> {
    let request = Request {
        from: args.from,
        boot: args.boot.clone(),
        follow: args.follow,
    };
    let socket = args
        .socket
        .path(args.endpoint.as_deref())
        .unwrap_or_default();
    let mut stream = read::open(&socket, &request).await?;
    if args.json {
        terminal::print_json_line(&stream.header)?;
    }
    while let Some(line) = stream.next_line().await.map_err(read::Error::Broken)? {
        if args.json {
            // Empty lines too: they show that the process is alive.
            terminal::print(&[terminal::json(&line)])?;
        } else if let Said::Event { json, .. } = read::said(&line)? {
            terminal::print(&[sentence(&json)])?;
        }
    }
    Ok(())
}

/// An event on one line: time, kind, name, subject, and how it went.
fn sentence(event: &Value) -> String {
    let micros = event["t"].as_i64().unwrap_or_default();
    let time = Timestamp::from_microsecond(micros).unwrap_or_default();
    let about = if text(event, "about").is_empty() {
        text(event, "trace")
    } else {
        text(event, "about")
    };
    let mut words = vec![
        format!("{time:.6}"),
        text(event, "kind").to_owned(),
        text(event, "name").to_owned(),
    ];
    words.push(about.to_owned());
    words.extend(["state", "code"].map(|field| text(event, field).to_owned()));
    words.extend(
        event["us"]
            .as_u64()
            .map(|us| format!("{} ms", us as f64 / 1e3)),
    );
    let next = event["next"].as_u64();
    words.extend(next.map(|us| format!("next try in {} s", us as f64 / 1e6)));
    words.push(text(event, "error").to_owned());
    words.retain(|word| !word.is_empty());
    words.join("  ")
}

fn text<'e>(event: &'e Value, field: &str) -> &'e str {
    event[field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_as_lines() {
        for (event, line) in [
            (
                json!({"t": 1_767_225_600_000_001_u64, "kind": "call", "name": "NodeStageVolume",
                    "trace": "uid", "about": "vol-1", "us": 12_345, "code": "OK"}),
                "2026-01-01T00:00:00.000001Z  call  NodeStageVolume  vol-1  OK  12.345 ms",
            ),
            (
                json!({"t": 1_767_225_600_000_002_u64, "kind": "queue", "name": "provisioner",
                    "trace": "uid", "state": "backing off", "next": 2_000_000}),
                "2026-01-01T00:00:00.000002Z  queue  provisioner  uid  backing off  next try in 2 s",
            ),
            (
                json!({"t": 1_767_225_600_000_003_u64, "kind": "phase", "name": "mkfs",
                    "trace": "uid", "about": "vol-1", "us": 85_200}),
                "2026-01-01T00:00:00.000003Z  phase  mkfs  vol-1  85.2 ms",
            ),
            (
                json!({"t": 0, "kind": "phase", "name": "mkfs", "trace": "uid", "us": 1,
                    "error": "why"}),
                "1970-01-01T00:00:00.000000Z  phase  mkfs  uid  0.001 ms  why",
            ),
        ] {
            assert_eq!(sentence(&event), line);
        }
    }
}
