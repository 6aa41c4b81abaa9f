//! Bringing generated schemas into shape.

use serde_json::{Value, json};

/// The part of a schema a path of property names leads to.
pub(super) fn at<'a>(schema: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.')
        .filter(|part| !part.is_empty())
        .fold(schema, |schema, part| &mut schema["properties"][part])
}

/// Takes out what only makes a difference between "not given" and `null`: the types never write
/// `null`, and a rule that asks whether a field is there must not be told yes by one.
pub(super) fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("nullable");
            // The name of a Rust type; a property of that name is an object, and stays.
            if fields.get("title").is_some_and(Value::is_string) {
                fields.remove("title");
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Describes a part that is a Kubernetes type in our own words, as a whole.
pub(super) fn describe_anew(root: &mut Value, path: &str, description: &str) {
    let part = at(root, path);
    undescribe(part);
    part["description"] = json!(description);
    part["x-kubernetes-map-type"] = json!("atomic");
    for list in ["matchExpressions", "values"] {
        mark_atomic(part, list);
    }
}

fn mark_atomic(schema: &mut Value, list: &str) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    if let Some(found) = fields.get_mut("properties").and_then(|p| p.get_mut(list)) {
        found["x-kubernetes-list-type"] = json!("atomic");
    }
    for value in fields.values_mut() {
        mark_atomic(value, list);
    }
}

fn undescribe(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        if fields.get("description").is_some_and(Value::is_string) {
            fields.remove("description");
        }
        fields.values_mut().for_each(undescribe);
    }
}
