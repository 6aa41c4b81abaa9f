//! The limits of messages. Many contain an answer of a driver or a tool, which may have any length.

/// The longest message of an event or an attachment in bytes, which is the API server's limit.
pub(crate) const MAX_EVENT: usize = 1024;
/// The longest message in another status in bytes. The admission policies know it as well.
pub(crate) const MAX_STATUS: usize = 4096;

/// A message of at most this many bytes. A longer one ends with an ellipsis.
pub fn cut(message: &str, longest: usize) -> String {
    if message.len() <= longest {
        return message.to_owned();
    }
    let mut end = longest.saturating_sub("…".len());
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut() {
        for (message, longest, expected) in [
            ("", 4, ""),
            ("abcd", 4, "abcd"),
            ("abcde", 4, "a…"),
            // No character is cut in two.
            ("aéé", 5, "aéé"),
            ("aéééé", 5, "a…"),
            ("aéééé", 6, "aé…"),
        ] {
            assert_eq!(cut(message, longest), expected, "{message}");
            assert!(cut(message, longest).len() <= longest, "{message}");
        }
    }
}
