//! Appends the events of this process to a file, in the form that `hostloop events --json` prints.

use std::io::{self, SeekFrom};
use std::path::Path;

use hostloop_events::serve::{Process, header_line, next_lines};
use hostloop_events::{RING, Ring};
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

/// The largest recording. A file that a person forgot must not fill a disk.
const MAX_FILE: u64 = 1 << 30;

/// A file for events.
pub struct Recording {
    file: File,
    /// The bytes in the file.
    size: u64,
}

impl Recording {
    /// Opens the file, to append to it. It is for its owner alone.
    pub async fn open(path: &Path) -> io::Result<Recording> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        let file = options.open(path).await?;
        let size = file.metadata().await?.len();
        let mut recording = Recording { file, size };
        if size > 0 && !ends_a_line(path).await? {
            recording.write(b"\n").await?;
        }
        Ok(recording)
    }

    /// Writes the events of this process until the stop. If the file can't be written, that is
    /// logged, and the calls go on without it.
    pub async fn follow(mut self, process: Process, stop: CancellationToken) {
        if let Err(error) = self.write_until(&RING, process, &stop).await {
            tracing::error!(%error, "calls are no longer recorded");
        }
        stop.cancelled().await;
    }

    async fn write_until(
        &mut self,
        ring: &Ring,
        process: Process,
        stop: &CancellationToken,
    ) -> io::Result<()> {
        let mut next = ring.since(0, 0).first;
        self.write(&header_line(ring, process, next)?).await?;
        loop {
            let mut changed = std::pin::pin!(ring.changed());
            // From here on, no event is missed.
            changed.as_mut().enable();
            if self.write_batch(ring, &mut next).await? {
                continue;
            }
            self.file.flush().await?;
            tokio::select! {
                () = changed => {}
                () = stop.cancelled() => {
                    while self.write_batch(ring, &mut next).await? {}
                    return self.file.flush().await;
                }
            }
        }
    }

    /// Writes the next events; false if there are none.
    async fn write_batch(&mut self, ring: &Ring, next: &mut u64) -> io::Result<bool> {
        let lines = next_lines(ring, next)?;
        self.write(&lines).await?;
        Ok(!lines.is_empty())
    }

    async fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let size = self.size.saturating_add(lines.len() as u64);
        if size > MAX_FILE {
            return Err(io::Error::other("the file has 1 GiB: move it away"));
        }
        self.size = size;
        self.file.write_all(lines).await
    }
}

/// False for a file that a full disk or a death has cut in a line.
async fn ends_a_line(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path).await?;
    file.seek(SeekFrom::End(-1)).await?;
    Ok(file.read_u8().await? == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_header_begins_its_own_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls.jsonl");
        for (old, before) in [("", ""), ("{}\n", "{}\n"), ("{\"half", "{\"half\n")] {
            std::fs::write(&path, old).unwrap();
            let process = Process {
                process: "proxy".to_owned(),
                node: None,
                version: "0".to_owned(),
            };
            let stop = CancellationToken::new();
            stop.cancel();
            let recording = Recording::open(&path).await.unwrap();
            recording.follow(process, stop).await;
            let text = std::fs::read_to_string(&path).unwrap();
            let added = text.strip_prefix(before).unwrap();
            let header = added.lines().next().unwrap();
            assert!(hostloop_events::read::header(header).is_ok(), "{text}");
        }
    }
}
