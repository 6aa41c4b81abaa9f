//! The part of a file that a fault of single operations is for.

use std::fmt;
use std::ops::Range;

use super::{ClaimFaultError, size, wrong};

/// The longest path, in bytes. With all other fields, a fault in its written form is not too long to
/// be read again.
const MAX_PATH: usize = 100;

/// A file of a volume, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilePart {
    /// The path from the root of the volume.
    pub path: String,
    /// The bytes of the file; `None` for all of them.
    pub bytes: Option<Range<u64>>,
}

/// The form of the annotation, with the names of its fields.
impl fmt::Display for FilePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file={}", self.path)?;
        if let Some(Range { start, end }) = &self.bytes {
            write!(f, ",range={start}-{end}")?;
        }
        Ok(())
    }
}

/// Reads a path. Users of the volume choose it, and it is shown to people.
pub(super) fn path(value: &str) -> Result<String, ClaimFaultError> {
    let why = if value.len() > MAX_PATH {
        "has more than 100 bytes"
    } else if !value.split('/').all(is_name) {
        "is not a path from the root of the volume, such as data/log"
    } else if value.chars().any(|c| c.escape_debug().len() > 1) {
        "has quotes, backslashes, or characters that can't be shown"
    } else {
        return Ok(value.to_owned());
    };
    Err(wrong("file", value, why))
}

fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
}

/// Reads a range, without the byte at its end.
pub(super) fn range(value: &str) -> Result<Range<u64>, ClaimFaultError> {
    let ends = value.split_once('-');
    let bytes = ends.and_then(|(from, to)| Some(size(from)?..size(to)?));
    match bytes {
        Some(bytes) if bytes.is_empty() => Err(wrong("range", value, "has no bytes")),
        Some(bytes) => Ok(bytes),
        None => Err(wrong(
            "range",
            value,
            "is not two sizes such as 4Ki-64Ki, the begin and the end",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_the_volume_and_can_be_shown() {
        let long = "a".repeat(MAX_PATH);
        for path in ["log", "data/base/1/2", "a=b c", "..a/b..", "\u{e9}", &long] {
            assert_eq!(super::path(path), Ok(path.to_owned()));
        }
        let too_long = "a".repeat(MAX_PATH + 1);
        for (path, why) in [
            ("", "is not a path"),
            ("/log", "is not a path"),
            ("data/", "is not a path"),
            ("data//log", "is not a path"),
            ("../log", "is not a path"),
            ("data/../../log", "is not a path"),
            ("./log", "is not a path"),
            ("..", "is not a path"),
            ("a\nb", "has quotes"),
            ("a\0b", "has quotes"),
            ("a\u{1b}[2J", "has quotes"),
            ("a\u{202e}b", "has quotes"),
            ("a\"b", "has quotes"),
            ("a\\b", "has quotes"),
            (&too_long, "has more than 100 bytes"),
        ] {
            let refused = super::path(path).unwrap_err().to_string();
            assert!(refused.starts_with("file: "), "{refused}");
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn ranges_have_two_ends() {
        for (text, expected) in [
            ("0-1", Some(0..1)),
            ("4Ki-64Ki", Some(4096..65_536)),
            ("100-1e3", Some(100..1000)),
            ("1-1", None),
            ("2-1", None),
            ("-1", None),
            ("1-", None),
            ("-1-5", None),
            ("1--5", None),
            ("5", None),
            ("", None),
            ("0-9Ei", None),
        ] {
            assert_eq!(range(text).ok(), expected, "{text:?}");
        }
    }
}
