//! The UID in the name of an object.

/// The length of a UID.
const LENGTH: usize = 36;

/// The UID that a name ends with, after a `-`, or that it is. A PersistentVolume is named
/// `pvc-UID` after its claim, or with another prefix; a snapshot is named `snapshot-UID`.
pub fn trace_of(name: &str) -> Option<&str> {
    let start = name.len().checked_sub(LENGTH)?;
    let uid = name.get(start..)?;
    let is_separate = name[..start].is_empty() || name[..start].ends_with('-');
    (is_separate && is_uid(uid)).then_some(uid)
}

/// True for the UID of an object: five groups of hexadecimal digits.
pub fn is_uid(text: &str) -> bool {
    text.len() == LENGTH
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_at_the_end_of_names() {
        const UID: &str = "2d1f8a7e-0c3b-4a55-9d1e-0123456789ab";
        for (name, found) in [
            (UID.to_owned(), true),
            (format!("pvc-{UID}"), true),
            (format!("hostloop-{UID}"), true),
            (format!("snapshot-{UID}"), true),
            (format!("pvc{UID}"), false),
            (format!("pvc-{UID}-1"), false),
            (format!("pvc-{}", UID.to_uppercase()), false),
            (
                "vol-da9dee9a4dbbe57d-01a208742b0b7298b4e21d571dc758a9".to_owned(),
                false,
            ),
            (
                "größe-ä-0123456789abcdef0123456789abcdef0".to_owned(),
                false,
            ),
            (String::new(), false),
        ] {
            assert_eq!(trace_of(&name), found.then_some(UID), "{name}");
        }
    }
}
