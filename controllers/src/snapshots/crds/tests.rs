use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds"))
}

/// `HOSTLOOP_UPDATE=1 cargo test -p hostloop-controllers --lib crds` writes them anew.
#[test]
fn the_files_are_as_the_types_are() {
    let update = std::env::var_os("HOSTLOOP_UPDATE").is_some();
    for crd in crds() {
        let path = folder().join(file_name(&crd));
        let expected = to_yaml(&crd);
        if update {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&path, &expected).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "{} is stale: run this test with HOSTLOOP_UPDATE=1",
            path.display()
        );
        let listed = std::fs::read_to_string(folder().join("kustomization.yaml")).unwrap();
        assert!(listed.contains(&file_name(&crd)));
    }
}

fn properties<'a>(crd: &'a Value, path: &str) -> &'a Value {
    let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    path.split('.')
        .filter(|part| !part.is_empty())
        .fold(root, |schema, part| &schema["properties"][part])
}

#[test]
fn every_rule_stands_at_a_field_there_is() {
    let all = [
        &rules::SNAPSHOT_CLASS,
        &rules::SNAPSHOT_CONTENT,
        &rules::SNAPSHOT,
        &rules::GROUP_CLASS,
        &rules::GROUP_CONTENT,
        &rules::GROUP,
    ];
    for (crd, details) in crds().iter().zip(all) {
        let crd = serde_json::to_value(crd).unwrap();
        let paths = details.rules.iter().map(|(path, _)| path);
        let paths = paths.chain(details.borrowed.iter().map(|(path, _)| path));
        let paths = paths.chain(details.bounds.iter().map(|(path, ..)| path));
        for path in paths {
            assert!(properties(&crd, path)["type"].is_string(), "{path}");
        }
        for (name, kind, path) in details.columns {
            let path = path.trim_start_matches('.');
            if !path.starts_with("metadata") {
                let found = &properties(&crd, path)["type"];
                let date = *kind == "date" && found == "string";
                assert!(date || found == kind, "{name} {path}: {found}");
            }
        }
    }
}

#[test]
fn schemas_are_structural_and_without_nulls() {
    for crd in crds() {
        let text = serde_json::to_string(&crd).unwrap();
        for no in ["nullable", "$ref", "anyOf", "allOf", "oneOf"] {
            assert!(!text.contains(&format!("\"{no}\"")), "{no} in {text}");
        }
    }
}

/// Without a conversion webhook, versions may differ only in their names.
#[test]
fn groups_are_served_in_their_beta_version_too() {
    for crd in crds() {
        let name = crd.metadata.name.clone().unwrap_or_default();
        let crd = serde_json::to_value(crd).unwrap();
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
    let all: Vec<Value> = crds()
        .iter()
        .map(|crd| serde_json::to_value(crd).unwrap())
        .collect();
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
        let mut found = properties(crd, path)[field].clone();
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
        let status: super::super::VolumeSnapshotStatus = serde_json::from_value(given).unwrap();
        assert_eq!(status.restore_size.as_deref(), read);
        assert!(!serde_json::to_string(&status).unwrap().contains("null"));
    }
}
