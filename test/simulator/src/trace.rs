//! What happened, line by line, and what must not have happened. One process runs one history, so
//! both are kept once.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::Write;

use hostloop_report::hex;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::{recording, secret, shim};

/// Who writes the product's log.
const LOG: &str = "log";
/// How the name of a file without one begins, as Linux shows it.
const UNNAMED: &str = "/#";
/// How many lines are kept for a report.
const KEPT: usize = 60;
/// How many violations are kept: the first ones matter.
const VIOLATIONS: usize = 20;

struct Lines {
    shown: bool,
    /// A path that differs between histories.
    dir: String,
    /// Of all lines; `None` before the first one.
    digest: Option<Sha256>,
    last: VecDeque<String>,
    violations: Vec<String>,
}

static LINES: Mutex<Lines> = Mutex::new(Lines {
    shown: false,
    dir: String::new(),
    digest: None,
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
    let text = text.as_ref();
    if secret::is_in(text) {
        let hidden = secret::hidden(text);
        violation(format!("a secret leaves: {actor} says {hidden}"));
    }
    let now = shim::now();
    let (seconds, millis) = (now.as_secs(), now.subsec_millis());
    let mut lines = LINES.lock();
    let text = portable(text, &lines.dir);
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let line = format!("{h:02}:{m:02}:{s:02}.{millis:03} {actor}: {text}");
    let digest = lines.digest.get_or_insert_default();
    digest.update(line.as_bytes());
    digest.update(b"\n");
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

/// Replaces what differs between two runs of a history: its folder, and inode numbers. Linux shows
/// them in place of the name of a file without one.
fn portable<'t>(text: &'t str, dir: &str) -> Cow<'t, str> {
    let text = if !dir.is_empty() && text.contains(dir) {
        Cow::Owned(text.replace(dir, "$DIR"))
    } else {
        Cow::Borrowed(text)
    };
    if !text.contains(UNNAMED) {
        return text;
    }
    let mut parts = text.split(UNNAMED);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        replaced += UNNAMED;
        replaced += if rest.starts_with(" (deleted)") {
            rest
        } else {
            part
        };
    }
    Cow::Owned(replaced)
}

/// Adds what must not happen.
pub(crate) fn violation(text: impl AsRef<str>) {
    line("VIOLATION", &text);
    let mut lines = LINES.lock();
    let text = portable(text.as_ref(), &lines.dir).into_owned();
    if lines.violations.len() < VIOLATIONS && !lines.violations.contains(&text) {
        lines.violations.push(text.clone());
        let about = format!("violation {}", lines.violations.len());
        drop(lines);
        recording::say(&about, &text);
    }
}

/// What must not have happened, so far.
pub(crate) fn violations() -> Vec<String> {
    LINES.lock().violations.clone()
}

/// A digest of all lines, and the last ones.
pub(crate) fn end() -> (String, Vec<String>) {
    let mut lines = LINES.lock();
    let digest = lines.digest.take().unwrap_or_default().finalize();
    (hex(&digest), lines.last.iter().cloned().collect())
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_line_with_a_secret_is_a_violation_without_it() {
        line("test", "nothing");
        line("test", format!("the password is {}", secret::content("a")));
        let found = violations();
        let expected = "a secret leaves: test says the password is ***-a";
        assert!(found.iter().any(|one| one == expected), "{found:?}");
        assert!(!found.iter().any(|one| one.contains("nothing")));
    }

    #[rstest]
    #[case::a_folder("open /tmp/a/pool", "open $DIR/pool")]
    #[case::a_file_without_a_name(
        "FICLONE /tmp/a/pool/incoming/#176425 (deleted): Input/output error",
        "FICLONE $DIR/pool/incoming/# (deleted): Input/output error"
    )]
    #[case::a_name_with_a_number("open /tmp/a/#17 and /#18", "open $DIR/#17 and /#18")]
    #[case::neither("nothing", "nothing")]
    fn two_runs_have_the_same_lines(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(portable(text, "/tmp/a"), expected);
    }
}
