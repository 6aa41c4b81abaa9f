//! Selectors of lists and watches.

use std::collections::BTreeMap;

use serde_json::Value;

/// True if the selectors of a request match an object.
pub(super) fn selects(query: &BTreeMap<String, String>, object: &Value) -> bool {
    let label = |key: &str| {
        object["metadata"]["labels"][key]
            .as_str()
            .map(str::to_owned)
    };
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

/// True if values meet all requirements. hostloop uses `k=v`, `k`, `!k` and `k in (v,w)`.
fn meets(selector: &str, value: impl Fn(&str) -> Option<String>) -> bool {
    let mut is_inside = false;
    let requirements = selector.split(|c: char| {
        is_inside = if is_inside { c != ')' } else { c == '(' };
        c == ',' && !is_inside
    });
    requirements.filter(|one| !one.is_empty()).all(|one| {
        if let Some((key, values)) = one.split_once(" in (") {
            let value = value(key);
            let mut values = values.trim_end_matches(')').split(',').map(str::trim);
            return values.any(|one| value.as_deref() == Some(one));
        }
        match (one.split_once('='), one.strip_prefix('!')) {
            (Some((key, wanted)), None) => value(key).as_deref() == Some(wanted),
            (None, Some(key)) => value(key).is_none(),
            (None, None) => value(one).is_some(),
            _ => panic!("not a selector of hostloop: {selector}"),
        }
    })
}
