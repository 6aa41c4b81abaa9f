//! Cuts messages to a length that their readers accept.

/// Returns the text if it has at most `max` bytes, or else its start and "…" in that length. It
/// never cuts within a character.
pub(crate) fn cut_off(mut text: String, max: usize) -> String {
    const SIGN: &str = "…";
    if text.len() <= max {
        return text;
    }
    let fits = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=max.saturating_sub(SIGN.len())).rev().find(fits);
    text.truncate(end.unwrap_or(0));
    text.push_str(SIGN);
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::fits("12345", "12345")]
    #[case::one_byte_more("123456", "12…")]
    #[case::before_a_character("1äääää", "1…")]
    #[case::between_characters("ääääää", "ä…")]
    fn cuts_between_characters(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(cut_off(text.to_owned(), 5), expected);
    }
}
