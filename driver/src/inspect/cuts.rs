//! `hostloop cuts`: takes, lists, keeps and drops the cuts of explorations. The running driver does
//! it, so its locks hold.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hostloop_report::cuts::{
    CutReport, CutsLine, CutsRequest, EndedExploration, TakeCuts, cuts_beside,
};
use hostloop_terminal::columns::or_dash;
use hostloop_terminal::humanize::{age, bytes};
use hostloop_terminal::page::{Cell, Page};
use hostloop_terminal::table::{long, numbers, words};
use hostloop_terminal::terminal;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::{block_on, input_ends};
use crate::cli::{CutsArgs, CutsCommand};
use crate::record::now_ns;

/// Exit code: the burst ended before its last cut.
const STOPPED: u8 = 2;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "socket for cuts {path}: {source}; does the driver run, with --enable-faults? It serves no \
         cuts without that flag"
    )]
    Connect { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error("the driver ended the connection, and its log may say why")]
    Ended,
    #[error("talking to the driver: {0}")]
    Broken(#[source] io::Error),
    #[error("the driver's answer is unreadable ({0}); use the program of its version")]
    Unreadable(#[from] serde_json::Error),
    /// No thread for the socket.
    #[error("starting threads: {0}")]
    Threads(#[source] io::Error),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[source] io::Error),
}

/// Does what the command says. Blocks.
pub fn run(args: &CutsArgs) -> Result<ExitCode, Error> {
    let until_eof = matches!(&args.command, CutsCommand::Take(take) if take.until_eof);
    let done = block_on(async {
        tokio::select! {
            done = perform(args) => done,
            () = input_ends(), if until_eof => Ok(ExitCode::from(STOPPED)),
        }
    });
    match done.map_err(Error::Threads)? {
        // The reader has gone.
        Err(Error::Print(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(ExitCode::from(STOPPED))
        }
        done => done,
    }
}

async fn perform(args: &CutsArgs) -> Result<ExitCode, Error> {
    let mut answer = Answer::of(&request(&args.command), &args.endpoint).await?;
    loop {
        match answer.next().await? {
            CutsLine::Refused { error } => return Err(Error::Refused(error)),
            CutsLine::Ended(ended) => {
                let code = code(&ended);
                print_line(&CutsLine::Ended(ended))?;
                return Ok(code);
            }
            line @ (CutsLine::Begun(_) | CutsLine::Cut(_)) => print_line(&line)?,
            CutsLine::Listed(list) if shows_table(&args.command) => {
                let lines = table(&list.cuts, terminal::width(), now_ns());
                terminal::print(&lines).map_err(Error::Print)?;
                return Ok(ExitCode::SUCCESS);
            }
            CutsLine::Listed(list) => return print_last(&list),
            CutsLine::Kept(kept) => return print_last(&kept),
            CutsLine::Dropped(dropped) => return print_last(&dropped),
        }
    }
}

fn request(command: &CutsCommand) -> CutsRequest {
    match command {
        CutsCommand::Take(take) => CutsRequest::Take(TakeCuts {
            volume: take.volume.clone(),
            cuts: take.cuts,
            every_ms: u64::try_from(take.every.as_millis()).unwrap_or(u64::MAX),
            expire_after_s: take.expire_after.as_secs(),
        }),
        CutsCommand::List { exploration, .. } => CutsRequest::List {
            exploration: exploration.clone(),
        },
        CutsCommand::Keep { snapshot } => CutsRequest::Keep {
            snapshot: snapshot.clone(),
        },
        CutsCommand::Drop { exploration } => CutsRequest::Drop {
            exploration: exploration.clone(),
        },
    }
}

fn code(ended: &EndedExploration) -> ExitCode {
    if ended.is_complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(STOPPED)
    }
}

fn shows_table(command: &CutsCommand) -> bool {
    matches!(command, CutsCommand::List { json: false, .. })
}

fn print_line(value: &impl serde::Serialize) -> Result<(), Error> {
    terminal::print_json_line(value).map_err(Error::Print)
}

fn print_last(value: &impl serde::Serialize) -> Result<ExitCode, Error> {
    print_line(value)?;
    Ok(ExitCode::SUCCESS)
}

const CUT: [Cell<CutReport>; 8] = [
    (long("EXPLORATION", 14), |c, _| c.exploration.clone()),
    (numbers("CUT"), |c, _| c.number.to_string()),
    (long("SNAPSHOT", 14), |c, _| c.snapshot.clone()),
    (long("VOLUME", 14), |c, _| c.volume.clone()),
    (words("POOL"), |c, _| or_dash(Some(c.pool.clone()))),
    (numbers("PROMISED"), |c, _| bytes(c.promised_bytes)),
    (numbers("AGE"), |c, now_ns| age(c.taken_ns, now_ns)),
    (numbers("EXPIRES"), |c, now_ns| age(now_ns, c.expires_ns)),
];

/// The cuts as a table. `width` is the terminal's, if there is one.
fn table(cuts: &[CutReport], width: Option<usize>, now_ns: u64) -> Vec<String> {
    let mut page = Page::new(width, now_ns);
    page.table("Cuts", &CUT, cuts);
    page.lines
}

/// The driver's answer to a request.
struct Answer {
    lines: Lines<BufReader<OwnedReadHalf>>,
    /// The driver ends a burst when this is closed.
    _writer: OwnedWriteHalf,
}

impl Answer {
    /// Sends a request to the driver at this endpoint.
    async fn of(request: &CutsRequest, endpoint: &Path) -> Result<Answer, Error> {
        let path = cuts_beside(endpoint);
        let stream = UnixStream::connect(&path).await;
        let stream = stream.map_err(|source| Error::Connect { path, source })?;
        let (reader, mut writer) = stream.into_split();
        let mut request = serde_json::to_vec(request)?;
        request.push(b'\n');
        writer.write_all(&request).await.map_err(Error::Broken)?;
        Ok(Answer {
            lines: BufReader::new(reader).lines(),
            _writer: writer,
        })
    }

    async fn next(&mut self) -> Result<CutsLine, Error> {
        let line = self.lines.next_line().await.map_err(Error::Broken)?;
        Ok(serde_json::from_str(&line.ok_or(Error::Ended)?)?)
    }
}

#[cfg(test)]
mod tests {
    use hostloop_terminal::terminal::plain;

    use super::*;

    #[test]
    fn cuts_as_a_table() {
        let cut = CutReport {
            exploration: "exploration-1".to_owned(),
            number: 7,
            snapshot: "snap-1".to_owned(),
            volume: "vol-1".to_owned(),
            pool: "default".to_owned(),
            size_bytes: 1 << 30,
            taken_ns: 1_000_000_000,
            expires_ns: 61_000_000_000,
            promised_bytes: 4096,
        };
        let lines = table(&[cut], None, 2_000_000_000);
        let row = plain(lines.last().unwrap());
        for text in [
            "exploration-1",
            " 7 ",
            "snap-1",
            "vol-1",
            "default",
            "1s",
            "59s",
        ] {
            assert!(row.contains(text), "{text:?} is not in {row:?}");
        }
        assert!(table(&[], None, 0).is_empty());
    }

    #[test]
    fn commands_as_requests() {
        for (json, expected) in [(true, false), (false, true)] {
            let exploration = Some("exploration-1".to_owned());
            let list = CutsCommand::List {
                exploration: exploration.clone(),
                json,
            };
            assert_eq!(shows_table(&list), expected);
            assert_eq!(request(&list), CutsRequest::List { exploration });
        }
        let drop = CutsCommand::Drop {
            exploration: "e".to_owned(),
        };
        let dropped = CutsRequest::Drop {
            exploration: "e".to_owned(),
        };
        assert_eq!(request(&drop), dropped);
        assert!(!shows_table(&drop));
    }
}
