//! What happened, line by line, and what must not have happened. One process runs one history, so
//! both are kept once.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::Write;

use parking_lot::Mutex;

use crate::{dice, record, shim};

/// Who writes the product's log.
const LOG: &str = "log";
/// How many lines are kept for a report.
const KEPT: usize = 60;
/// How many violations are kept: the first ones matter.
const VIOLATIONS: usize = 20;

struct Lines {
    shown: bool,
    /// A path that differs between histories.
    dir: String,
    digest: u64,
    last: VecDeque<String>,
    violations: Vec<String>,
}

static LINES: Mutex<Lines> = Mutex::new(Lines {
    shown: false,
    dir: String::new(),
    digest: 0,
    last: VecDeque::new(),
    violations: Vec::new(),
});

/// Prints all further lines, if `shown`. Lines do not contain `dir`.
pub(crate) fn begin(shown: bool, dir: &str) {
    let mut lines = LINES.lock();
    (lines.shown, lines.dir) = (shown, dir.to_owned());
}

/// Adds a line.
pub(crate) fn line(actor: &str, text: impl AsRef<str>) {
    let now = shim::now();
    let (seconds, millis) = (now.as_secs(), now.subsec_millis());
    let mut lines = LINES.lock();
    let text = text.as_ref();
    let text = if !lines.dir.is_empty() && text.contains(&lines.dir) {
        Cow::Owned(text.replace(&lines.dir, "$DIR"))
    } else {
        Cow::Borrowed(text)
    };
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let line = format!("{h:02}:{m:02}:{s:02}.{millis:03} {actor}: {text}");
    for byte in line.bytes() {
        lines.digest = dice::mix(lines.digest ^ u64::from(byte)).wrapping_add(1);
    }
    if lines.shown {
        print(&line);
    }
    if actor != LOG {
        if lines.last.len() == KEPT {
            lines.last.pop_front();
        }
        lines.last.push_back(line);
    }
}

/// Adds what must not happen.
pub(crate) fn violation(text: impl AsRef<str>) {
    line("VIOLATION", &text);
    let mut lines = LINES.lock();
    let text = text.as_ref().replace(&lines.dir.clone(), "$DIR");
    if lines.violations.len() < VIOLATIONS && !lines.violations.contains(&text) {
        lines.violations.push(text.clone());
        let about = format!("violation {}", lines.violations.len());
        drop(lines);
        record::say(&about, &text);
    }
}

/// What must not have happened, so far.
pub(crate) fn violations() -> Vec<String> {
    LINES.lock().violations.clone()
}

/// A digest of all lines, and the last ones.
pub(crate) fn end() -> (u64, Vec<String>) {
    let lines = LINES.lock();
    (lines.digest, lines.last.iter().cloned().collect())
}

/// Writes lines of the product's log.
#[derive(Clone, Copy)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // A look at the history does not belong to it.
        if !shim::is_apart() {
            line(LOG, String::from_utf8_lossy(bytes).trim_end());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Prints a line.
#[expect(clippy::disallowed_methods, reason = "the simulator's own words")]
pub(crate) fn print(line: &str) {
    // The reader may have ended.
    let _ = writeln!(std::io::stdout(), "{line}");
}
