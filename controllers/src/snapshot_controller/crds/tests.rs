use std::collections::BTreeSet;
use std::path::PathBuf;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::*;
use crate::snapshots::*;

fn values() -> Vec<Value> {
    let value = |crd| serde_json::to_value(crd).unwrap();
    crds().into_iter().map(value).collect()
}

fn root(crd: &Value) -> &Value {
    &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

/// The part of a schema at a path of property names.
fn part<'a>(root: &'a Value, path: &str) -> &'a Value {
    let names = path.split('.').filter(|name| !name.is_empty());
    names.fold(root, |schema, name| &schema["properties"][name])
}

#[test]
fn the_folder_has_these_files() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds"));
    let listed = std::fs::read_to_string(folder.join("kustomization.yaml")).unwrap();
    for (crd, text) in crds().iter().zip(FILES) {
        let file = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        assert_eq!(std::fs::read_to_string(folder.join(&file)).unwrap(), text);
        assert!(listed.contains(&file), "{file}");
    }
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), FILES.len() + 1);
}

/// The schema of a type, as `kube` derives it.
fn schema<K: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    let rewrite = kube::core::schema::StructuralSchemaRewriter;
    let generator = settings.with_transform(rewrite).into_generator();
    generator.into_root_schema_for::<K>().to_value()
}

/// Names in a list, or the keys of an object.
fn names(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Array(list) => list.iter().map(Value::to_string).collect(),
        Value::Object(fields) => fields.keys().cloned().collect(),
        _ => BTreeSet::new(),
    }
}

#[track_caller]
fn agree(path: &str, ours: &Value, committed: &Value) {
    for key in ["type", "format"] {
        assert_eq!(committed[key], ours[key], "{key} of {path}");
    }
    for key in ["properties", "required", "enum"] {
        assert_eq!(names(&committed[key]), names(&ours[key]), "{key} of {path}");
    }
    for (name, ours) in ours["properties"].as_object().into_iter().flatten() {
        agree(
            &format!("{path}.{name}"),
            ours,
            &committed["properties"][name],
        );
    }
    for key in ["items", "additionalProperties"] {
        if ours[key].is_object() {
            agree(&format!("{path}.{key}"), &ours[key], &committed[key]);
        }
    }
}

#[test]
fn definitions_agree_with_the_types() {
    let crds = values();
    for (crd, path, ours) in [
        (0, "", schema::<VolumeSnapshotClass>()),
        (1, "spec", schema::<VolumeSnapshotContentSpec>()),
        (1, "status", schema::<VolumeSnapshotContentStatus>()),
        (2, "spec", schema::<VolumeSnapshotSpec>()),
        (2, "status", schema::<VolumeSnapshotStatus>()),
        (3, "", schema::<VolumeGroupSnapshotClass>()),
        (4, "spec", schema::<VolumeGroupSnapshotContentSpec>()),
        (4, "status", schema::<VolumeGroupSnapshotContentStatus>()),
        (5, "spec", schema::<VolumeGroupSnapshotSpec>()),
        (5, "status", schema::<VolumeGroupSnapshotStatus>()),
    ] {
        let path_of = format!("{} {path}", crds[crd]["metadata"]["name"]);
        agree(&path_of, &ours, part(root(&crds[crd]), path));
    }
}

/// The fields that a CEL rule reads from its own object.
fn fields_of(rule: &str) -> Vec<String> {
    let rule = rule
        .replace("oldSelf.", "self.")
        .replace("__namespace__", "namespace");
    let field = |text: &str| {
        text.split(|c: char| !c.is_ascii_alphanumeric())
            .next()
            .map(str::to_owned)
    };
    rule.split("self.").skip(1).filter_map(field).collect()
}

fn check_rules(schema: &Value, checked: &mut usize) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        *checked += 1;
        for field in fields_of(rule["rule"].as_str().unwrap()) {
            assert!(
                schema["properties"][&field].is_object(),
                "{field} in {rule}"
            );
        }
    }
    for (_, inner) in schema["properties"].as_object().into_iter().flatten() {
        check_rules(inner, checked);
    }
}

#[test]
fn every_rule_and_column_is_of_a_field_there_is() {
    let mut rules = Vec::new();
    for crd in values() {
        let mut checked = 0;
        check_rules(root(&crd), &mut checked);
        rules.push(checked);
        let columns = &crd["spec"]["versions"][0]["additionalPrinterColumns"];
        for column in columns.as_array().unwrap() {
            let path = column["jsonPath"].as_str().unwrap().trim_start_matches('.');
            if !path.starts_with("metadata") {
                let found = &part(root(&crd), path)["type"];
                let date = column["type"] == "date" && found == "string";
                assert!(date || *found == column["type"], "{column}: {found}");
            }
        }
    }
    assert_eq!(rules, [0, 8, 6, 3, 11, 7]);
}
#[test]
fn schemas_are_structural_and_without_nulls() {
    for crd in values() {
        let text = serde_json::to_string(&crd).unwrap();
        for no in ["nullable", "$ref", "anyOf", "allOf", "oneOf"] {
            assert!(!text.contains(&format!("\"{no}\"")), "{no} in {text}");
        }
    }
}

/// Without a conversion webhook, versions may differ only in their names.
#[test]
fn groups_are_served_in_their_beta_version_too() {
    for crd in values() {
        let name = crd["metadata"]["name"].as_str().unwrap();
        let versions = crd["spec"]["versions"].as_array().unwrap();
        let named: Vec<_> = versions
            .iter()
            .map(|version| {
                (
                    version["name"].as_str().unwrap(),
                    version["storage"] == true,
                )
            })
            .collect();
        if !name.contains("group") {
            assert_eq!(named, [("v1", true)], "{name}");
            continue;
        }
        assert_eq!(named, [("v1", true), ("v1beta2", false)], "{name}");
        let mut beta = versions[1].clone();
        beta["name"] = json!("v1");
        beta["storage"] = json!(true);
        assert_eq!(beta, versions[0], "{name}");
        assert_eq!(crd["spec"]["conversion"], Value::Null, "{name}");
    }
}

#[test]
fn what_a_field_may_be() {
    let all = values();
    let (class, content, snapshot, group) = (&all[0], &all[1], &all[2], &all[5]);
    let of_content = json!(["deletionPolicy", "driver", "source", "volumeSnapshotRef"]);
    for (crd, path, field, expected) in [
        (class, "", "required", json!(["deletionPolicy", "driver"])),
        (class, "deletionPolicy", "enum", json!(["Delete", "Retain"])),
        (content, "spec", "required", of_content),
        (content, "status.creationTime", "format", json!("int64")),
        (content, "status.restoreSize", "minimum", json!(0.0)),
        (
            content,
            "spec.volumeSnapshotRef",
            "x-kubernetes-map-type",
            json!("atomic"),
        ),
        (snapshot, "", "required", json!(["spec"])),
        (snapshot, "spec", "required", json!(["source"])),
        (
            snapshot,
            "status.creationTime",
            "format",
            json!("date-time"),
        ),
        (group, "spec.source.selector", "type", json!("object")),
    ] {
        let mut found = part(root(crd), path)[field].clone();
        if let Some(list) = found.as_array_mut() {
            list.sort_by_key(Value::to_string);
        }
        assert_eq!(found, expected, "{path} {field}");
    }
    let status = |crd: &Value| crd["spec"]["versions"][0]["subresources"]["status"].is_object();
    assert_eq!(
        all.iter().map(status).collect::<Vec<_>>(),
        [false, true, true, false, true, true]
    );
}

#[test]
fn a_restore_size_may_be_a_number() {
    for (given, read) in [
        (json!({"restoreSize": "1Gi"}), Some("1Gi")),
        (json!({"restoreSize": 1024}), Some("1024")),
        (json!({"restoreSize": null}), None),
        (json!({}), None),
    ] {
        let status: VolumeSnapshotStatus = serde_json::from_value(given).unwrap();
        assert_eq!(status.restore_size.as_deref(), read);
        assert!(!serde_json::to_string(&status).unwrap().contains("null"));
    }
}
