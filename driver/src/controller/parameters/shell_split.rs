//! Splitting `mkfsOptions` into words as a person at a shell would expect, without a shell.

/// Splits at white space. Single quotes keep everything; double quotes and a backslash keep what
/// they keep in a shell. Nothing is expanded. [`crate::kernel::check_mkfs_options`] decides which
/// words mkfs may get.
pub fn words(text: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_ascii_whitespace() => words.extend(word.take()),
            '\'' => single(&mut chars, word.get_or_insert_default())?,
            '"' => double(&mut chars, word.get_or_insert_default())?,
            '\\' => {
                let kept = chars.next().ok_or("ends in a backslash")?;
                word.get_or_insert_default().push(kept);
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if words.iter().any(|word| word.contains(char::is_control)) {
        Err("contains a control character")
    } else {
        Ok(words)
    }
}

fn single(chars: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), &'static str> {
    for c in chars {
        if c == '\'' {
            return Ok(());
        }
        word.push(c);
    }
    Err("has a single quote that is not closed")
}

fn double(chars: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), &'static str> {
    const OPEN: &str = "has a double quote that is not closed";
    loop {
        match chars.next().ok_or(OPEN)? {
            '"' => return Ok(()),
            '\\' => match chars.next().ok_or(OPEN)? {
                c @ ('"' | '\\') => word.push(c),
                c => word.extend(['\\', c]),
            },
            c => word.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn splits_as_a_shell_would() {
        let table: [(&str, &[&str]); 12] = [
            ("", &[]),
            (" \t\n", &[]),
            ("-N 1000", &["-N", "1000"]),
            ("  -m   0  ", &["-m", "0"]),
            ("-L 'my data'", &["-L", "my data"]),
            ("-L \"my data\"", &["-L", "my data"]),
            (r"-L my\ data", &["-L", "my data"]),
            (r#"-L "a \"b\" \n \\""#, &["-L", r#"a "b" \n \"#]),
            ("-L ''", &["-L", ""]),
            ("-O ^has_journal,extent", &["-O", "^has_journal,extent"]),
            ("-L a'b'\"c\"d", &["-L", "abcd"]),
            ("-L $(id);`id`|&", &["-L", "$(id);`id`|&"]),
        ];
        for (text, expected) in table {
            assert_eq!(words(text).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn refuses_what_can_not_be_split() {
        for text in [
            "-L 'open",
            "-L \"open",
            "-L \"open\\",
            "-L \\",
            "-N 10\0",
            "-L 'a\nb'",
        ] {
            assert!(words(text).is_err(), "{text:?}");
        }
    }
}
