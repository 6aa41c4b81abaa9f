//! Says on standard error what a person waits for. On a terminal, each text replaces the last one.

use hostloop_terminal::terminal;

/// The last text.
pub(crate) struct ProgressLine {
    is_terminal: bool,
    shown: Option<String>,
}

/// Moves the cursor to the beginning of the line and clears the line.
const CLEAR: &str = "\r\x1b[K";

impl ProgressLine {
    pub(crate) fn new() -> Self {
        ProgressLine {
            is_terminal: terminal::is_error_terminal(),
            shown: None,
        }
    }

    /// Shows a text. Standard error may be closed, which does not matter.
    pub(crate) fn show(&mut self, text: &str) {
        if self.shown.as_deref() == Some(text) {
            return;
        }
        if self.is_terminal {
            let _closed =
                terminal::begin_line(true, &format!("{}… {text}", terminal::control(CLEAR)));
        } else {
            terminal::warn(&format!("… {text}"));
        }
        self.shown = Some(text.to_owned());
    }

    /// Removes the text, before something is printed.
    pub(crate) fn clear(&mut self) {
        if self.shown.take().is_some() && self.is_terminal {
            let _closed = terminal::begin_line(true, &terminal::control(CLEAR));
        }
    }
}
