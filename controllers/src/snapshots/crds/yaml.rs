//! YAML, as far as definitions need it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

/// A definition as a file for people and `kubectl apply`.
pub fn to_yaml(crd: &CustomResourceDefinition) -> String {
    let mut text = String::from("---\n");
    let value = serde_json::to_value(crd).unwrap_or_default();
    block(&value, 0, &mut text);
    text
}

fn block(value: &Value, depth: usize, text: &mut String) {
    let margin = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                text.push_str(&format!("{margin}{}:", plain(key)));
                beside(value, depth + 1, text);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                match item {
                    Value::Object(fields) if !fields.is_empty() => {
                        block(item, depth + 1, &mut inner);
                        // The first field stands on the line of the dash.
                        text.push_str(&format!("{margin}- {}", inner.trim_start()));
                    }
                    _ => {
                        beside(item, depth + 1, &mut inner);
                        text.push_str(&format!("{margin}-{inner}"));
                    }
                }
            }
        }
        scalar => text.push_str(&format!("{margin}{}\n", in_line(scalar))),
    }
}

/// What follows a colon or a dash.
fn beside(value: &Value, depth: usize, text: &mut String) {
    let nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if nested {
        text.push('\n');
        block(value, depth, text);
    } else {
        text.push_str(&format!(" {}\n", in_line(value)));
    }
}

fn in_line(value: &Value) -> String {
    match value {
        Value::String(string) => plain(string),
        other => other.to_string(),
    }
}

/// A string as it is where that can be read as nothing else, and quoted otherwise.
fn plain(string: &str) -> String {
    let harmless = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let is_word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&string.to_lowercase().as_str());
    let begins_well = string.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.');
    if begins_well && string.chars().all(harmless) && !is_word {
        string.to_owned()
    } else {
        // JSON's strings are YAML's double-quoted ones.
        Value::from(string).to_string()
    }
}
