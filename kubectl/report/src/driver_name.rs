//! The rule for a driver's name.

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

/// Parses and checks a driver's name.
pub fn parse(word: &str) -> Result<String, String> {
    check(word).map_err(|why| format!("{word:?} {why}"))?;
    Ok(word.to_owned())
}

/// Why a driver's name is invalid. A name has at most 63 characters: letters, digits, dashes and
/// dots, with a letter or digit at both ends (GetPluginInfoResponse.name).
pub fn check(name: &str) -> Result<(), String> {
    if name.len() > 63 {
        return Err(format!("has {} characters, more than 63", name.len()));
    }
    if !name.starts_with(is_plain) || !name.ends_with(is_plain) {
        return Err("does not begin and end with a letter or digit".to_owned());
    }
    match name
        .chars()
        .find(|c| !is_plain(*c) && !matches!(c, '-' | '.'))
    {
        Some(c) => Err(format!(
            "contains {c:?}; letters, digits, '-' and '.' are allowed"
        )),
        None => Ok(()),
    }
}

/// Why the manifests can't have this name. Objects are named by it, so it has no capital letters,
/// and each part between dots begins and ends with a letter or digit.
pub fn check_in_manifests(name: &str) -> Result<(), String> {
    check(name)?;
    if let Some(c) = name.chars().find(char::is_ascii_uppercase) {
        return Err(format!(
            "contains {c:?}; objects are named by it, so it has no capital letters"
        ));
    }
    if name
        .split('.')
        .any(|part| !part.starts_with(is_plain) || !part.ends_with(is_plain))
    {
        return Err(
            "has a part between dots that does not begin and end with a letter or digit".to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["hostloop.csi.dev", "a", "A-1.b", "a..b", &"x".repeat(63)] {
            assert_eq!(check(name), Ok(()), "{name}");
            assert_eq!(parse(name), Ok(name.to_owned()));
        }
        for name in ["", "-a", "a.", "a_b", "a/b", "../a", "ü", &"x".repeat(64)] {
            assert!(check(name).is_err(), "{name}");
            assert!(check_in_manifests(name).is_err(), "{name}");
        }
        assert_eq!(
            parse("_a").unwrap_err(),
            "\"_a\" does not begin and end with a letter or digit"
        );
    }

    #[test]
    fn names_in_manifests() {
        for name in ["hostloop.csi.dev", "a", "a-1.b", "1.5", &"x".repeat(63)] {
            assert_eq!(check_in_manifests(name), Ok(()), "{name}");
        }
        for (name, why) in [
            ("A-1.b", "capital letters"),
            ("a..b", "a part between dots"),
            ("a.-b", "a part between dots"),
            ("a-.b", "a part between dots"),
        ] {
            let found = check_in_manifests(name).unwrap_err();
            assert!(found.contains(why), "{name}: {found}");
        }
    }
}
