//! Types of TypeScript, from the JSON schemas of Rust types.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::check_file;

/// The longest line of a comment.
const COLUMNS: usize = 100;

/// Fails if a file has other types than a schema. With `HOSTLOOP_WRITE_DOCS`, writes them instead.
/// `source` is the file with the Rust types.
pub fn check_types(document: &str, root: &str, schema: &Value, source: &str) {
    let head = format!(
        "/**\n * A test checks this file against {source}, and writes it with\n * \
         HOSTLOOP_WRITE_DOCS=1.\n */\n"
    );
    check_file(document, &format!("{head}{}", types(root, schema)), source);
}

/// The types of a schema and of all that it refers to. The schema itself gets the name `root`. Each
/// variant of a tagged enum is an interface, with the tag before the enum's name.
pub fn types(root: &str, schema: &Value) -> String {
    let mut all: BTreeMap<&str, &Value> = entries(&schema["$defs"]).collect();
    all.insert(root, schema);
    all.into_iter()
        .map(|(name, schema)| declaration(name, schema))
        .collect()
}

fn declaration(name: &str, schema: &Value) -> String {
    let variants = schema["oneOf"].as_array();
    let tagged: Vec<(String, &Value)> = variants
        .into_iter()
        .flatten()
        .filter_map(|variant| Some((format!("{}{name}", capital(tag(variant)?)), variant)))
        .collect();
    if !tagged.is_empty() {
        let names: Vec<&str> = tagged.iter().map(|(name, _)| name.as_str()).collect();
        let union = format!(
            "\n{}export type {name} =\n  | {};\n",
            comment(schema, ""),
            names.join("\n  | ")
        );
        let variants = tagged
            .iter()
            .map(|(name, variant)| interface(name, variant, &[schema, variant]));
        return variants.chain([union]).collect();
    }
    if schema["properties"].is_object() {
        return interface(name, schema, &[schema]);
    }
    format!(
        "\n{}export type {name} = {};\n",
        comment(schema, ""),
        expression(schema)
    )
}

/// The value of a variant's tag.
fn tag(variant: &Value) -> Option<&str> {
    entries(&variant["properties"]).find_map(|(_, field)| field["const"].as_str())
}

/// An interface with the fields of several schemas.
fn interface(name: &str, described: &Value, parts: &[&Value]) -> String {
    let mut fields = BTreeMap::new();
    for part in parts {
        let required = part["required"].as_array();
        for (field, schema) in entries(&part["properties"]) {
            let is_required =
                required.is_some_and(|names| names.iter().any(|name| name.as_str() == Some(field)));
            fields.insert(field, (schema, is_required));
        }
    }
    let mut text = format!("\n{}export interface {name} {{\n", comment(described, ""));
    for (field, (schema, is_required)) in fields {
        let mut kind = expression(schema);
        // A field that may be absent is absent instead of null.
        if !is_required && let Some(known) = kind.strip_suffix(" | null") {
            kind = known.to_owned();
        }
        let mark = if is_required { "" } else { "?" };
        text.push_str(&comment(schema, "  "));
        text.push_str(&format!("  {field}{mark}: {kind};\n"));
    }
    text.push_str("}\n");
    text
}

/// The type of a value.
fn expression(schema: &Value) -> String {
    if let Some(path) = schema["$ref"].as_str() {
        return path.rsplit('/').next().unwrap_or(path).to_owned();
    }
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(values) = schema["enum"].as_array() {
        return union(values.iter().map(Value::to_string));
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(parts) = schema[key].as_array() {
            return union(parts.iter().map(expression));
        }
    }
    match &schema["type"] {
        Value::String(kind) => of_kind(kind, schema),
        Value::Array(kinds) => union(
            kinds
                .iter()
                .filter_map(Value::as_str)
                .map(|kind| of_kind(kind, schema)),
        ),
        _ => "unknown".to_owned(),
    }
}

fn union(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" | ")
}

fn of_kind(kind: &str, schema: &Value) -> String {
    match kind {
        "array" => {
            let item = expression(&schema["items"]);
            if item.contains(' ') {
                format!("({item})[]")
            } else {
                format!("{item}[]")
            }
        }
        "object" => format!(
            "Record<string, {}>",
            expression(&schema["additionalProperties"])
        ),
        "integer" => "number".to_owned(),
        kind => kind.to_owned(),
    }
}

/// The description of a schema as a comment.
fn comment(schema: &Value, indent: &str) -> String {
    let Some(text) = schema["description"].as_str() else {
        return String::new();
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = format!("{indent}/** {} */\n", words.join(" "));
    if line.chars().count() <= COLUMNS + 1 {
        return line;
    }
    let mut lines = vec![format!("{indent}/**")];
    let mut line = format!("{indent} *");
    for word in words {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(line);
            line = format!("{indent} *");
        }
        line.push_str(&format!(" {word}"));
    }
    lines.push(line);
    lines.push(format!("{indent} */\n"));
    lines.join("\n")
}

/// The entries of an object; none of another value.
fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let map = value.as_object();
    map.into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), value))
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions() {
        for (schema, text) in [
            (json!(true), "unknown"),
            (json!({"$ref": "#/$defs/Pool", "description": "d"}), "Pool"),
            (json!({"type": "string"}), "string"),
            (json!({"type": "integer", "format": "uint64"}), "number"),
            (json!({"type": ["boolean", "null"]}), "boolean | null"),
            (
                json!({"enum": ["a", "b"], "type": "string"}),
                "\"a\" | \"b\"",
            ),
            (
                json!({"oneOf": [{"const": "a", "type": "string"}, {"const": "b"}]}),
                "\"a\" | \"b\"",
            ),
            (
                json!({"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}),
                "A | null",
            ),
            (
                json!({"type": "array", "items": {"type": "string"}}),
                "string[]",
            ),
            (
                json!({"type": "array", "items": {"type": ["string", "null"]}}),
                "(string | null)[]",
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "number"}}),
                "Record<string, number>",
            ),
            (
                json!({"type": "object", "additionalProperties": true}),
                "Record<string, unknown>",
            ),
        ] {
            assert_eq!(expression(&schema), text, "{schema}");
        }
    }

    #[test]
    fn a_tagged_enum_is_a_union_of_interfaces_with_the_common_fields() {
        let schema = json!({
            "description": "A message.", "type": "object",
            "properties": {"t": {"type": "integer", "description": "When."}}, "required": ["t"],
            "oneOf": [
                {
                    "type": "object", "description": "It is there.", "required": ["type", "pool"],
                    "properties": {
                        "type": {"type": "string", "const": "set"},
                        "pool": {"$ref": "#/$defs/Pool"},
                        "why": {"type": ["string", "null"]},
                    },
                },
                {
                    "type": "object", "required": ["type"],
                    "properties": {"type": {"type": "string", "const": "gone"}},
                },
            ],
            "$defs": {
                "Pool": {
                    "type": "object", "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
            },
        });
        assert_eq!(
            types("Message", &schema),
            "\n/** It is there. */\nexport interface SetMessage {\n  pool: Pool;\n  /** When. */\n  \
             t: number;\n  type: \"set\";\n  why?: string;\n}\n\
             \nexport interface GoneMessage {\n  /** When. */\n  t: number;\n  type: \"gone\";\n}\n\
             \n/** A message. */\nexport type Message =\n  | SetMessage\n  | GoneMessage;\n\
             \nexport interface Pool {\n  name: string;\n}\n"
        );
    }

    #[test]
    fn long_comments_are_wrapped() {
        let schema = json!({"description": "word ".repeat(30), "type": "string"});
        let text = comment(&schema, "  ");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!((lines[0], lines[3]), ("  /**", "   */"));
        assert!(lines.iter().all(|line| line.len() <= COLUMNS), "{text}");
        assert_eq!(comment(&json!(true), ""), "");
    }
}
