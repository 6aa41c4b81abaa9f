//! Copies ranges of a volume's device out of a pod and into one, through an exec of a shell in it.
//!
//! The shell reads lines with the size of a block, the first block and their number, and runs dd for
//! each. The sizes are such that every dd copies them exactly. A line of zeros ends it, because not
//! every API server passes on the end of the input.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::archive::{DataReader, DataWriter};
use super::error::{ArchiveError, Error, stalled};
use super::ranges::Range;
use crate::api::{ApiError, Call};

/// Where the pod has the volume's device.
pub(super) const DEVICE: &str = "/dev/volume";

const READ: &str = r#"
while read -r size at count; do
  [ "$size" != 0 ] || exit 0
  dd if="$0" bs="$size" skip="$at" count="$count" iflag=fullblock status=none || exit
done
exit 1"#;
const WRITE: &str = r#"
while read -r size at count; do
  if [ "$size" = 0 ]; then
    exec dd if=/dev/null of="$0" bs=1 count=0 conv=notrunc,fsync status=none
  fi
  dd of="$0" bs="$size" seek="$at" count="$count" iflag=fullblock conv=notrunc status=none || exit
done
exit 1"#;
/// The line that ends either.
const END: &[u8] = b"0 0 0\n";

/// How long a copy may stand still.
const STALL: Duration = Duration::from_secs(120);
/// How long the shell may take to end: it then writes the device back.
const SYNC: Duration = Duration::from_secs(600);
/// The buffers between connection, files and the shell.
const BUFFER: usize = 64 << 10;
/// The longest error of the shell.
const MAX_ERROR: u64 = 4096;
/// How long the shell's error may take when it has ended.
const ERROR_WAIT: Duration = Duration::from_secs(5);

/// Why a copy ended early.
enum CopyError {
    Archive(ArchiveError),
    /// The connection or the shell.
    Shell(String),
}

impl From<ArchiveError> for CopyError {
    fn from(error: ArchiveError) -> Self {
        CopyError::Archive(error)
    }
}

impl From<std::io::Error> for CopyError {
    fn from(error: std::io::Error) -> Self {
        CopyError::Shell(error.to_string())
    }
}

/// Copies these ranges of the device in a pod to a file of data.
pub(super) async fn read_device(
    pods: &Api<Pod>,
    pod: &str,
    ranges: &[Range],
    data: &mut DataWriter,
) -> Result<(), Error> {
    let mut shell = Shell::start(pods, pod, READ).await?;
    let (input, output) = (shell.process.stdin(), shell.process.stdout());
    let (Some(mut input), Some(mut output)) = (input, output) else {
        return Err(shell.failed("no stream".to_owned()));
    };
    // A shell that has ended takes no more lines, and then the copy fails.
    let copied = tokio::try_join!(ask(&mut input, ranges), copy_out(&mut output, ranges, data));
    // The input stays open until then: an older API server takes its end for that of all streams.
    let ended = shell.end(copied.map(|_| ())).await;
    drop(input);
    ended
}

/// Copies all ranges of a file of data to the device in a pod.
pub(super) async fn write_device(
    pods: &Api<Pod>,
    pod: &str,
    data: &mut DataReader,
) -> Result<(), Error> {
    let mut shell = Shell::start(pods, pod, WRITE).await?;
    let Some(mut input) = shell.process.stdin() else {
        return Err(shell.failed("no stream".to_owned()));
    };
    let copied = copy_in(&mut input, data).await;
    let ended = shell.end(copied).await;
    drop(input);
    ended
}

/// Asks for these ranges.
async fn ask(input: &mut (impl AsyncWrite + Unpin), ranges: &[Range]) -> Result<(), CopyError> {
    for range in ranges {
        input.write_all(line(*range).as_bytes()).await?;
    }
    input.write_all(END).await.map_err(CopyError::from)
}

/// The line that asks for a range.
fn line(range: Range) -> String {
    let [size, at, count] = range.blocks();
    format!("{size} {at} {count}\n")
}

async fn copy_out(
    output: &mut (impl AsyncRead + Unpin),
    ranges: &[Range],
    data: &mut DataWriter,
) -> Result<(), CopyError> {
    let mut buffer = vec![0; BUFFER];
    let mut copied = 0;
    for range in ranges {
        data.begin(*range)?;
        let mut left = range.length;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
            let Ok(read) = timeout(STALL, output.read(&mut buffer[..most])).await else {
                return Err(CopyError::Shell(stalled(STALL, copied)));
            };
            let read = read?;
            if read == 0 {
                return Err(CopyError::Shell("it ended early".to_owned()));
            }
            data.write(&buffer[..read])?;
            left -= read as u64;
            copied += read as u64;
        }
    }
    Ok(())
}

async fn copy_in(
    input: &mut (impl AsyncWrite + Unpin),
    data: &mut DataReader,
) -> Result<(), CopyError> {
    let mut buffer = vec![0; BUFFER];
    let mut copied = 0;
    while let Some(range) = data.next_range()? {
        send(input, line(range).as_bytes(), copied).await?;
        let mut left = range.length;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
            data.read(&mut buffer[..most])?;
            send(input, &buffer[..most], copied).await?;
            left -= most as u64;
            copied += most as u64;
        }
    }
    send(input, END, copied).await
}

async fn send(
    input: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    copied: u64,
) -> Result<(), CopyError> {
    match timeout(STALL, input.write_all(bytes)).await {
        Ok(written) => written.map_err(CopyError::from),
        Err(_) => Err(CopyError::Shell(stalled(STALL, copied))),
    }
}

/// A shell that runs in a pod.
struct Shell {
    pod: String,
    process: AttachedProcess,
    ended: BoxFuture<'static, Option<Status>>,
}

impl Shell {
    async fn start(pods: &Api<Pod>, pod: &str, script: &str) -> Result<Shell, Error> {
        let params = AttachParams::default()
            .stdin(true)
            .max_stdin_buf_size(BUFFER)
            .max_stdout_buf_size(BUFFER)
            .max_stderr_buf_size(BUFFER);
        let started = pods.exec(pod, ["sh", "-c", script, DEVICE], &params).await;
        let call = Call::new("create", "pods/exec", pods.namespace(), pod);
        let mut process = started.map_err(|error| ApiError::new(call, error))?;
        let ended = match process.take_status() {
            Some(status) => status.boxed(),
            None => std::future::ready(None).boxed(),
        };
        Ok(Shell {
            pod: pod.to_owned(),
            process,
            ended,
        })
    }

    /// Waits for the end of the shell. What it says is why a copy ended early.
    async fn end(mut self, copied: Result<(), CopyError>) -> Result<(), Error> {
        let broken = match copied {
            Ok(()) => None,
            Err(CopyError::Archive(error)) => return Err(error.into()),
            Err(CopyError::Shell(why)) => Some(why),
        };
        // A connection that broke has no more to say.
        let patience = if broken.is_some() { ERROR_WAIT } else { SYNC };
        let status = timeout(patience, &mut self.ended).await.ok().flatten();
        let succeeded = status
            .as_ref()
            .is_some_and(|status| status.status.as_deref() == Some("Success"));
        match broken {
            None if succeeded => Ok(()),
            broken => {
                let said = self.error().await;
                let reported = status.and_then(|status| status.message);
                let whys = [said, broken, reported];
                let why = whys.into_iter().flatten().next();
                Err(self.failed(why.unwrap_or_else(|| "the connection broke".to_owned())))
            }
        }
    }

    /// What the shell says on its standard error.
    async fn error(&mut self) -> Option<String> {
        let mut errors = self.process.stderr()?.take(MAX_ERROR);
        let mut said = Vec::new();
        // Without an end of the stream, what came counts.
        let _ = timeout(ERROR_WAIT, errors.read_to_end(&mut said)).await;
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        Some(said).filter(|said| !said.is_empty())
    }

    fn failed(&self, why: String) -> Error {
        Error::Copy {
            pod: self.pod.clone(),
            why,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::backup::archive::{Archive, BackupInfo};

    /// Runs a script on a file in place of the device, with this input. Returns its output.
    #[expect(clippy::disallowed_methods, reason = "a shell of the test's own")]
    fn run(script: &str, device: &Path, input: &[u8]) -> Vec<u8> {
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .arg(device)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut sink = shell.stdin.take().unwrap();
        sink.write_all(input).unwrap();
        let output = shell.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    /// Bytes that differ from block to block.
    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n / 512 % 251) as u8).collect()
    }

    #[tokio::test]
    async fn what_is_read_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let source = bytes(300 << 10);
        fs::write(&from, &source).unwrap();
        fs::write(&to, vec![0; source.len()]).unwrap();
        let ranges = [(0, 4096), (12288, 200 << 10), (306_688, 512)]
            .map(|(offset, length)| Range { offset, length });
        let mut asked: String = ranges.iter().map(|range| line(*range)).collect();
        asked.push_str("0 0 0\n");
        let read = run(READ, &from, asked.as_bytes());

        let archive = Archive::open(&dir.path().join("backups")).unwrap();
        let mut data = archive.begin().unwrap();
        let copied = copy_out(&mut &read[..], &ranges, &mut data).await;
        assert!(copied.is_ok());
        let (file, sha256, copied) = data.finish().unwrap();
        let backup = BackupInfo {
            file,
            sha256,
            size: source.len() as u64,
            bytes: copied,
            snapshot: "a".to_owned(),
            base: None,
            namespace: "demo".to_owned(),
            volume_snapshot: "s".to_owned(),
            taken: 0,
        };
        let mut sent = Vec::new();
        let copied = copy_in(&mut sent, &mut archive.read(&backup).unwrap()).await;
        assert!(copied.is_ok());
        assert_eq!(run(WRITE, &to, &sent), b"");

        let written = fs::read(&to).unwrap();
        assert_eq!(written.len(), source.len());
        for (n, (has, had)) in written.iter().zip(&source).enumerate() {
            let is_listed = ranges
                .iter()
                .any(|range| (range.offset..range.offset + range.length).contains(&(n as u64)));
            assert_eq!(*has, if is_listed { *had } else { 0 }, "byte {n}");
        }
    }

    #[tokio::test]
    async fn an_output_that_ends_early_is_no_copy() {
        let dir = tempfile::tempdir().unwrap();
        let archive = Archive::open(dir.path()).unwrap();
        let mut data = archive.begin().unwrap();
        let range = Range {
            offset: 0,
            length: 4096,
        };
        match copy_out(&mut &[0; 4095][..], &[range], &mut data).await {
            Err(CopyError::Shell(why)) => assert_eq!(why, "it ended early"),
            Err(CopyError::Archive(error)) => panic!("{error}"),
            Ok(()) => panic!("it is complete"),
        }
    }
}
