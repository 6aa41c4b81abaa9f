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

/// True if values meet all requirements: `k`, `!k`, `k=v`, `k!=v`, `k in (v,w)`, `k notin (v,w)`.
fn meets(selector: &str, value: impl Fn(&str) -> Option<String>) -> bool {
    let mut depth = 0;
    let requirements = selector.split(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    });
    requirements.filter(|one| !one.is_empty()).all(|one| {
        let among = |(key, list): (&str, &str)| {
            let list = list.trim_end_matches(')');
            value(key).is_some_and(|value| list.split(',').any(|one| one.trim() == value))
        };
        if let Some(pair) = one.split_once(" notin (") {
            !among(pair)
        } else if let Some(pair) = one.split_once(" in (") {
            among(pair)
        } else if let Some((key, other)) = one.split_once("!=") {
            value(key).as_deref() != Some(other)
        } else if let Some((key, wanted)) = one.split_once('=') {
            value(key).as_deref() == Some(wanted.trim_start_matches('='))
        } else if let Some(key) = one.strip_prefix('!') {
            value(key).is_none()
        } else {
            value(one).is_some()
        }
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
