//! Colours, where they are wanted, and lines broken at words.

use std::env;
use std::io::IsTerminal;

/// How a piece of text is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// A heading.
    Title,
    /// What explains.
    Quiet,
    /// A call.
    Call,
    /// Came to be; is right.
    Good,
    /// Went away.
    Gone,
    /// Became different.
    Changed,
    /// Is wrong.
    Bad,
}

/// Paints, or leaves text as it is.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// Colours only on a terminal, and not where `NO_COLOR` is set or the terminal is dumb.
    pub fn for_stdout() -> Paint {
        let set = |name| env::var_os(name).is_some_and(|v| !v.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|t| t == "dumb");
        Paint {
            on: std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb,
        }
    }

    /// Never colours.
    pub fn plain() -> Paint {
        Paint { on: false }
    }

    /// The text in this tone.
    pub fn text(self, tone: Tone, text: &str) -> String {
        if !self.on {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Title => "1",
            Tone::Quiet => "2",
            Tone::Call => "36",
            Tone::Good => "32",
            Tone::Gone => "35",
            Tone::Changed => "33",
            Tone::Bad => "1;31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// The width of the terminal on standard output in columns, if it is one.
pub fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Breaks a text into lines of at most `width` characters, at spaces. A longer word gets a line
/// of its own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_words() {
        for (text, width, lines) in [
            ("", 10, vec![]),
            ("one two three", 7, vec!["one two", "three"]),
            ("one two three", 100, vec!["one two three"]),
            (
                "a incomprehensible b",
                5,
                vec!["a", "incomprehensible", "b"],
            ),
            ("größe größe", 11, vec!["größe größe"]),
        ] {
            assert_eq!(wrap(text, width), lines, "{text:?}");
        }
    }

    #[test]
    fn plain_is_plain() {
        assert_eq!(Paint::plain().text(Tone::Bad, "x"), "x");
        assert_eq!(
            Paint { on: true }.text(Tone::Bad, "x"),
            "\x1b[1;31mx\x1b[0m"
        );
    }
}
