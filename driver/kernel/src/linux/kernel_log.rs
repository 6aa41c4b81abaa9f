//! The kernel's log, which alone says why a filesystem can't be mounted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// The most lines that go into an error.
const LINES: usize = 3;

/// The messages from a moment on. A process without access to the log sees none.
pub(super) struct KernelLog(Option<File>);

impl KernelLog {
    pub(super) fn from_now() -> KernelLog {
        KernelLog(open_at_end().ok())
    }

    /// The first messages about a device ("loop7"), in one line.
    pub(super) fn of_device(&self, name: &str) -> Option<String> {
        let mut log = self.0.as_ref()?;
        let mut lines = Vec::new();
        // Longer than any record.
        let mut record = [0; 8192];
        while lines.len() < LINES {
            match log.read(&mut record) {
                Ok(0) => break,
                Ok(n) => lines.extend(message(&String::from_utf8_lossy(&record[..n]), name)),
                // Newer messages have overwritten the next one.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}

fn open_at_end() -> io::Result<File> {
    let mut log = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/kmsg")?;
    log.seek(SeekFrom::End(0))?;
    Ok(log)
}

/// The text of a record ("priority,number,time,flags;text", then lines of properties), if it is
/// about the device.
fn message(record: &str, device: &str) -> Option<String> {
    let text = record.lines().next()?.split_once(';')?.1;
    let (_, rest) = text.split_once(&format!("{device})"))?;
    let before = text.len() - rest.len() - device.len() - 1;
    let named = text[..before].ends_with(['(', ' ']);
    named.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_about_the_device_count() {
        for (record, says) in [
            (
                "3,1,2,-;XFS (loop7): bad\n SUBSYSTEM=block\n",
                Some("XFS (loop7): bad"),
            ),
            (
                "3,1,2,-;BTRFS error (device loop7): bad\n",
                Some("BTRFS error (device loop7): bad"),
            ),
            ("3,1,2,-;XFS (loop17): bad\n", None),
            ("3,1,2,-;XFS (loop70): bad\n", None),
            ("3,1,2,-;loop7: detected capacity change\n", None),
            ("XFS (loop7): bad\n", None),
            ("", None),
        ] {
            assert_eq!(message(record, "loop7").as_deref(), says, "{record:?}");
        }
    }
}
