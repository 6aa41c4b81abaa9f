//! Parses booleans in annotations the way Go programs do.

/// Accepts the same values as Go's `strconv.ParseBool`.
pub fn parse(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn words() {
        for (text, expected) in [
            ("true", Some(true)),
            ("True", Some(true)),
            ("TRUE", Some(true)),
            ("t", Some(true)),
            ("T", Some(true)),
            ("1", Some(true)),
            ("false", Some(false)),
            ("f", Some(false)),
            ("0", Some(false)),
            ("tRUE", None),
            ("yes", None),
            ("", None),
            (" true", None),
        ] {
            assert_eq!(parse(text).ok(), expected, "{text:?}");
        }
    }
}
