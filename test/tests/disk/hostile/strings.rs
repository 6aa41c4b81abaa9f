//! Strings that are no ID, no name, no token and no path.

/// What may stand where an ID belongs, with words for it; `real` is one that would be right.
pub(crate) fn not_ids(real: &str) -> Vec<(&'static str, String)> {
    vec![
        ("a traversal", "../../../../canary".to_owned()),
        ("an absolute path", "/etc/passwd".to_owned()),
        (
            "a traversal after a prefix",
            "vol-../../../canary".to_owned(),
        ),
        ("a traversal after an ID", format!("{real}/../{real}")),
        ("an ID and a slash", format!("{real}/")),
        ("an ID and a NUL", format!("{real}\0")),
        ("an ID and a newline", format!("{real}\n")),
        ("a space and an ID", format!(" {real}")),
        ("an ID in capitals", real.to_uppercase()),
        ("an ID cut short", real[..real.len() - 1].to_owned()),
        ("an ID made longer", format!("{real}0")),
        ("two dots", "..".to_owned()),
        ("one dot", ".".to_owned()),
        ("a NUL", "\0".to_owned()),
        ("not ASCII", "vol-\u{202e}\u{fe0f}".to_owned()),
        ("an escape sequence", "\u{1b}[2Jvol".to_owned()),
        ("percent signs", "%s%n%2e%2e%2f".to_owned()),
        ("a command", "$(touch /tmp/x);`id`".to_owned()),
        ("half an inline handle", format!("csi-{}", "a".repeat(63))),
        (
            "an inline handle in capitals",
            format!("csi-{}", "A".repeat(64)),
        ),
        (
            "a traversal as an inline handle",
            format!("csi-{}", "../".repeat(22)),
        ),
        ("129 bytes", "a".repeat(129)),
        ("a hundred thousand bytes", "v".repeat(100_000)),
    ]
}

/// Well formed, of a pool that is not on this node.
pub(crate) fn foreign(real: &str) -> String {
    let mut parts: Vec<_> = real.split('-').map(str::to_owned).collect();
    parts[1] = "0123456789abcdef".to_owned();
    parts.join("-")
}

/// Well formed, of our pool, and never made.
pub(crate) fn missing(real: &str) -> String {
    let (head, uuid) = real.rsplit_once('-').expect("an ID has three parts");
    let other: String = uuid.chars().rev().collect();
    // A version-7 UUID keeps its shape only where the version and variant digits stay.
    let mut digits: Vec<char> = other.chars().collect();
    let ours: Vec<char> = uuid.chars().collect();
    digits[12] = ours[12];
    digits[16] = ours[16];
    format!("{head}-{}", digits.into_iter().collect::<String>())
}

/// No names: too long, or with control characters that CSI forbids.
pub(crate) fn not_names() -> Vec<(&'static str, String)> {
    vec![
        ("no name", String::new()),
        ("a name of 129 bytes", "n".repeat(129)),
        ("a name of 65 two-byte letters", "é".repeat(65)),
        ("a name with a NUL", "pvc\0x".to_owned()),
        ("a name with a bell", "pvc\u{7}".to_owned()),
        ("a name with DEL", "pvc\u{7f}".to_owned()),
        ("a name with a C1 control", "pvc\u{85}".to_owned()),
    ]
}

/// Names that are odd and legal.
pub(crate) fn odd_names() -> Vec<(&'static str, String)> {
    vec![
        ("a tab", "a\tb".to_owned()),
        ("a line feed", "a\nb".to_owned()),
        ("a carriage return", "a\rb".to_owned()),
        ("slashes", "a/b/c".to_owned()),
        ("a traversal", "../../../../canary".to_owned()),
        ("an absolute path", "/etc/passwd".to_owned()),
        ("two dots", "..".to_owned()),
        ("128 bytes", "n".repeat(128)),
        ("64 two-byte letters", "é".repeat(64)),
        ("a space", " ".to_owned()),
        ("a command", "$(touch canary)".to_owned()),
        ("quotes", "\"'\\".to_owned()),
        ("a format", "%s%n{}".to_owned()),
    ]
}

/// Starting tokens that lead nowhere.
pub(crate) fn not_tokens() -> Vec<(&'static str, String)> {
    vec![
        ("zero", "0".to_owned()),
        ("minus one", "-1".to_owned()),
        ("a huge number", "9".repeat(40)),
        ("words", "invalid-token".to_owned()),
        ("a NUL", "\0".to_owned()),
        ("a traversal", "../../canary".to_owned()),
        ("not ASCII", "\u{202e}".to_owned()),
        ("many bytes", "t".repeat(100_000)),
    ]
}

/// Paths that break CSI's rules without a look at the disk.
pub(crate) fn not_paths() -> Vec<(&'static str, String)> {
    vec![
        ("no path", String::new()),
        ("a relative path", "pods/mount".to_owned()),
        ("a path with ..", "/tmp/../etc/mount".to_owned()),
        ("the root directory", "/".to_owned()),
        ("a path with a NUL", "/tmp/a\0b".to_owned()),
        ("two dots", "..".to_owned()),
        ("a home", "~/mount".to_owned()),
    ]
}
