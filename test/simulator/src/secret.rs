//! Secrets of users. Each has a content that is easy to find wherever it should not be.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::cluster::NAMESPACE;

/// The key of a secret's only entry.
pub(crate) const KEY: &str = "password";
/// What begins the content of each secret, and what it is in base64, however it goes on.
const BEGIN: &str = "s3cr3t";
const BEGIN_BASE64: &str = "czNjcjN0";

/// The content of the secret with this name.
pub(crate) fn content(name: &str) -> String {
    format!("{BEGIN}-{name}")
}

/// The name of the secret for changes of the attributes of a claim's volume. It is another one than for
/// the other calls about the volume.
pub(crate) fn to_modify(claim: &str) -> String {
    format!("{claim}-modify")
}

/// A secret of users.
pub(crate) fn object(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE}, "type": "Opaque",
        "data": {KEY: base64(content(name).as_bytes())}})
}

/// True if a text has the content of a secret.
pub(crate) fn is_in(text: &str) -> bool {
    text.contains(BEGIN) || text.contains(BEGIN_BASE64)
}

/// True if an object has the content of a secret somewhere.
pub(crate) fn is_within(value: &Value) -> bool {
    match value {
        Value::String(text) => is_in(text),
        Value::Array(items) => items.iter().any(is_within),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| is_in(name) || is_within(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A text without the beginnings of contents of secrets.
pub(crate) fn hidden(text: &str) -> Cow<'_, str> {
    if is_in(text) {
        Cow::Owned(text.replace(BEGIN, "***").replace(BEGIN_BASE64, "***"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Bytes in base64.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let whole = (0..3).fold(0, |sum, at| {
            (sum << 8) | usize::from(part.get(at).copied().unwrap_or_default())
        });
        for digit in 0..4 {
            text.push(if digit <= part.len() {
                char::from(DIGITS[(whole >> (18 - 6 * digit)) & 63])
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_found_in_any_form_and_hidden() {
        for (bytes, expected) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")] {
            assert_eq!(base64(bytes.as_bytes()), expected);
        }
        for name in ["a", "bb", "ccc"] {
            let secret = object(name);
            assert!(is_within(&secret), "{secret}");
            assert!(is_within(&json!({"a": [{"b": content(name)}]})));
            assert!(is_within(&json!({content(name): 1})));
            assert!(!is_in(&hidden(&secret.to_string())));
            assert!(!is_in(&hidden(&content(name))));
        }
        assert!(!is_within(&json!({"a": ["s3cr", null, 1]})));
        assert_eq!(hidden("nothing"), "nothing");
    }
}
