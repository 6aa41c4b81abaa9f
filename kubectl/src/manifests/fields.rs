//! Fields of an object by their paths in kustomize.

use serde_json::Value;

/// The field at a path such as `spec.containers.[name=main].image`.
pub(crate) fn field<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(object, |at, step| match condition(step) {
            Some((key, value)) => at.as_array()?.iter().find(|item| item[key] == *value),
            None => at.get(step),
        })
}

/// The same field, to be changed.
pub(super) fn field_mut<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.')
        .try_fold(object, |at, step| match condition(step) {
            Some((key, value)) => at
                .as_array_mut()?
                .iter_mut()
                .find(|item| item[key] == *value),
            None => at.get_mut(step),
        })
}

/// `[key=value]`: an item of a list.
fn condition(step: &str) -> Option<(&str, &str)> {
    step.strip_prefix('[')?.strip_suffix(']')?.split_once('=')
}

/// Merges a patch into a value as kustomize does (a strategic merge): maps by key, lists of named
/// items by name, and anything else is replaced. Items of the patch come first, and null removes.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                match value {
                    Value::Null => _ = target.remove(key),
                    value => merge(target.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (Value::Array(target), Value::Array(patch)) if is_named(target) && is_named(patch) => {
            let mut rest = std::mem::take(target);
            for item in patch {
                let at = rest.iter().position(|one| one["name"] == item["name"]);
                let mut merged = at.map_or(Value::Null, |at| rest.remove(at));
                merge(&mut merged, item);
                target.push(merged);
            }
            target.append(&mut rest);
        }
        (target, patch) => *target = patch.clone(),
    }
}

fn is_named(items: &[Value]) -> bool {
    items.iter().all(|item| item["name"].is_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_by_path() {
        let object = json!({"a": {"b": [{"name": "x", "c": 1}, {"name": "y", "c": 2}]}});
        for (path, found) in [
            ("a.b.[name=y].c", Some(json!(2))),
            ("a.b.[name=z].c", None),
            ("a.c", None),
            ("a.b.c", None),
        ] {
            assert_eq!(field(&object, path).cloned(), found, "{path}");
            assert_eq!(
                field_mut(&mut object.clone(), path).cloned(),
                found,
                "{path}"
            );
        }
    }

    #[test]
    fn merging() {
        for (target, patch, merged) in [
            (json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2})),
            (
                json!({"a": {"b": 1, "c": 2}}),
                json!({"a": {"b": 3}}),
                json!({"a": {"b": 3, "c": 2}}),
            ),
            (json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (
                json!([{"name": "x"}, {"name": "y", "v": 1}]),
                json!([{"name": "y", "w": 2}, {"name": "z"}]),
                json!([{"name": "y", "v": 1, "w": 2}, {"name": "z"}, {"name": "x"}]),
            ),
        ] {
            let mut got = target.clone();
            merge(&mut got, &patch);
            assert_eq!(got, merged, "{target} and {patch}");
        }
    }
}
