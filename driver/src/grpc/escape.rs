//! Escapes and shortens text from a request for a log line or a message. Names may contain line
//! feeds, so control characters are escaped. Text is cut at the maximum length of a name.

use std::fmt;

use crate::csi::validate::MAX_STRING;

/// Displays a string escaped and cut to [`MAX_STRING`] characters.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, more) = match self.0.char_indices().nth(MAX_STRING) {
            Some((end, _)) => (&self.0[..end], "…"),
            None => (self.0, ""),
        };
        write!(f, "{}{more}", shown.escape_debug())
    }
}

#[cfg(test)]
mod tests {
    use super::Shown;

    #[test]
    fn control_characters_and_endless_text_are_tamed() {
        for (text, shown) in [
            ("pvc-1", "pvc-1".to_owned()),
            ("", String::new()),
            ("a\nlevel=error\u{1b}[31m", "a\\nlevel=error\\u{1b}[31m".to_owned()),
            ("größe/x", "größe/x".to_owned()),
            (&"ä".repeat(128), "ä".repeat(128)),
            (&"ä".repeat(129), "ä".repeat(128) + "…"),
        ] {
            assert_eq!(Shown(text).to_string(), shown);
        }
    }
}
