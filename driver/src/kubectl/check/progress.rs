//! Says on standard error what a person waits for. On a terminal, each text replaces the last one.

use std::io::{self, IsTerminal, Write};

/// The last text.
pub(super) struct Progress {
    is_terminal: bool,
    shown: Option<String>,
}

/// Moves the cursor to the beginning of the line and clears the line.
const CLEAR: &str = "\r\x1b[K";

impl Progress {
    pub(super) fn new() -> Self {
        Progress { is_terminal: io::stderr().is_terminal(), shown: None }
    }

    /// Shows a text. Standard error may be closed, which does not matter.
    pub(super) fn show(&mut self, text: &str) {
        if self.shown.as_deref() == Some(text) {
            return;
        }
        let mut out = io::stderr().lock();
        let _ = match self.is_terminal {
            true => write!(out, "{CLEAR}… {text}").and_then(|()| out.flush()),
            false => writeln!(out, "… {text}"),
        };
        self.shown = Some(text.to_owned());
    }

    /// Removes the text, before something is printed.
    pub(super) fn clear(&mut self) {
        if self.shown.take().is_some() && self.is_terminal {
            let mut out = io::stderr().lock();
            let _ = write!(out, "{CLEAR}").and_then(|()| out.flush());
        }
    }
}
