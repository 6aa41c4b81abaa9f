//! Prints text for people.
//!
//! Names, messages, reports and log lines may have any author. Here, and nowhere else, text becomes
//! output, and whatever could control a terminal or deceive a reader is escaped. What this program
//! itself wants of the terminal, such as a style, stands in a mark. No other text has one, since a
//! random key is part of it.
#![expect(clippy::disallowed_methods, reason = "here text becomes output")]

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;

use anstream::adapter;
use uuid::Uuid;

/// The longest printed line of text, in characters.
const LONGEST: usize = 16 << 10;

/// Begins a mark.
static BEGIN: LazyLock<String> = LazyLock::new(|| format!("\u{1}{}", Uuid::new_v4().simple()));
/// Ends a mark.
const END: char = '\u{2}';

/// Marks a sequence for the terminal.
pub fn control(sequence: &str) -> String {
    format!("{}{sequence}{END}", *BEGIN)
}

/// Marks a document of several lines, such as YAML, which is printed whole.
pub fn document(text: &str) -> String {
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(escaped).collect();
    control(&lines.join("\n"))
}

/// Prints lines to standard output.
pub fn print(lines: &[String]) -> io::Result<()> {
    print_to(anstream::stdout().lock(), lines)
}

/// Prints a line to standard error, which may be closed.
pub fn warn(line: &str) {
    let _closed = print_to(anstream::stderr().lock(), &[line]);
}

/// Prints an error, which may have several lines, to standard error.
pub fn error(text: &str) {
    // What others say does not look like a line of this program.
    let text = text.replace('\n', "\n  ");
    let lines: Vec<&str> = text.split('\n').collect();
    let _closed = print_to(anstream::stderr().lock(), &lines);
}

/// Prints the beginning of a line, without its end.
pub fn begin_line(to_error: bool, text: &str) -> io::Result<()> {
    if to_error {
        begin_line_to(anstream::stderr().lock(), text)
    } else {
        begin_line_to(anstream::stdout().lock(), text)
    }
}

fn begin_line_to(mut out: impl Write, text: &str) -> io::Result<()> {
    write!(out, "{}", printed(text))?;
    out.flush()
}

fn print_to(mut out: impl Write, lines: &[impl AsRef<str>]) -> io::Result<()> {
    for line in lines {
        writeln!(out, "{}", printed(line.as_ref()))?;
    }
    out.flush()
}

/// Marks JSON, which is printed whole.
pub fn json(text: &str) -> String {
    document(&escaped_json(text))
}

/// Prints a value as indented JSON to standard output.
pub fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    print(&[json(&serde_json::to_string_pretty(value)?)])
}

/// Prints a value as JSON on one line to standard output.
pub fn print_json_line(value: &impl serde::Serialize) -> io::Result<()> {
    print(&[json(&serde_json::to_string(value)?)])
}

/// True if standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// True if standard error is a terminal.
pub fn is_error_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Number of columns if standard output is a terminal.
pub fn width() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(io::stdout())?;
    Some(usize::from(width.0))
}

/// What is printed of a line: its marks as they are, and the rest escaped.
pub fn printed(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut pieces = line.split(BEGIN.as_str());
    let mut left = LONGEST;
    add_text(&mut out, pieces.next().unwrap_or_default(), &mut left);
    for piece in pieces {
        let (sequence, rest) = piece.split_once(END).unwrap_or_default();
        out.push_str(sequence);
        add_text(&mut out, rest, &mut left);
    }
    out
}

/// Adds the text, escaped, and cut off behind so many characters as are left.
fn add_text(out: &mut String, text: &str, left: &mut usize) {
    let length = text.chars().count();
    match text.char_indices().nth(*left) {
        None => out.push_str(&escaped(text)),
        Some((end, _)) if *left > 0 => {
            out.push_str(&escaped(&text[..end]));
            out.push('…');
        }
        Some(_) => {}
    }
    *left = left.saturating_sub(length);
}

/// The line as it is printed without styles.
pub fn plain(line: &str) -> String {
    adapter::strip_str(&printed(line)).to_string()
}

/// The text with an escape in place of each character that could control a terminal or deceive.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// JSON with the escapes of JSON in place of such characters. JSON itself only escapes some.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    if !json.contains(|c| is_harmful(c) && c != '\n') {
        return Cow::Borrowed(json);
    }
    let escaped = json
        .chars()
        .fold(String::with_capacity(json.len()), |mut out, c| {
            if is_harmful(c) && c != '\n' {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            } else {
                out.push(c);
            }
            out
        });
    Cow::Owned(escaped)
}

/// True for control characters except tab, for those that change the direction or the order of
/// text, and for those without a width: a name with one looks like another name.
fn is_harmful(c: char) -> bool {
    (c.is_control() && c != '\t')
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::{BAD, paint};

    #[test]
    fn text_does_not_control_the_terminal() {
        for (text, line) in [
            ("größe ✓ a\tb", "größe ✓ a\tb"),
            ("red \u{1b}[31m", "red \\u{1b}[31m"),
            ("clear \u{9b}2J", "clear \\u{9b}2J"),
            ("two\r\nlines\u{7f}", "two\\r\\nlines\\u{7f}"),
            ("\u{202e}gnp.exe", "\\u{202e}gnp.exe"),
            ("da\u{200b}ta", "da\\u{200b}ta"),
            (
                "\u{1}0123456789abcdef0123456789abcdef\u{1b}[2J\u{2}",
                "\\u{1}0123456789abcdef0123456789abcdef\\u{1b}[2J\\u{2}",
            ),
        ] {
            assert_eq!(printed(text), line);
            assert_eq!(printed(&printed(text)), line, "twice is once");
            let painted = format!("{} {text}", paint(BAD, text));
            assert_eq!(plain(&painted), format!("{line} {line}"));
            assert!(printed(&painted).starts_with("\u{1b}["), "{painted:?}");
        }
    }

    #[test]
    fn a_long_line_is_cut() {
        let long = "ä".repeat(3 * LONGEST);
        for line in [long.clone(), format!("a {}{long}", paint(BAD, &long))] {
            assert_eq!(plain(&line).chars().count(), LONGEST + 1);
        }
        assert_eq!(plain(&document(&long)), long);
    }

    #[test]
    fn json_stays_json() {
        let value = serde_json::json!({"a": "\u{1b}[2J \u{9b}2J \u{202e} \u{e0001} \n ü"});
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let text = escaped_json(&pretty);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
        assert_eq!(printed(&document(&text)), text, "nothing is left to escape");
    }
}
