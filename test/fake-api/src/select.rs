//! Selectors of lists and watches, and the parsing of query parameters.

use std::collections::BTreeMap;

use serde_json::Value;

/// True if the selectors of a request match an object.
pub(super) fn selects(query: &BTreeMap<String, String>, object: &Value) -> bool {
    let label = |key: &str| object["metadata"]["labels"][key].as_str().map(str::to_owned);
    // A missing field counts as empty.
    let field = |path: &str| {
        let pointer = format!("/{}", path.replace('.', "/"));
        Some(match object.pointer(&pointer) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        })
    };
    let selector = |key| query.get(key).map_or("", String::as_str);
    meets(selector("labelSelector"), label) && meets(selector("fieldSelector"), field)
}

/// True if values meet all requirements. The controllers use `k=v` and `!k`.
fn meets(selector: &str, value: impl Fn(&str) -> Option<String>) -> bool {
    let mut requirements = selector.split(',').filter(|one| !one.is_empty());
    requirements.all(|one| match (one.split_once('='), one.strip_prefix('!')) {
        (Some((key, wanted)), None) => value(key).as_deref() == Some(wanted),
        (None, Some(key)) => value(key).is_none(),
        _ => panic!("not a selector of the controllers: {selector}"),
    })
}

/// Parses the query parameters of a request.
pub(super) fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), decoded(value))).collect()
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut plain = pieces.next().unwrap_or_default().replace('+', " ");
    for piece in pieces {
        let (code, rest) = piece.split_at(2);
        plain.push(u8::from_str_radix(code, 16).expect("an ASCII letter").into());
        plain.push_str(&rest.replace('+', " "));
    }
    plain
}
