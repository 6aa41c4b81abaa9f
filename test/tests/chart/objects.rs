//! Renderings of Helm and of kustomize, as objects that can be compared.

use std::collections::BTreeMap;

use hostloop_test::child;
use hostloop_test::machine::{root, text};
use hostloop_test::{deployed, tools};
use serde_json::{Value, json};

/// Objects by "kind namespace/name".
pub(crate) type Objects = BTreeMap<String, Value>;

/// What the chart adds to the labels of each object.
const HELM_LABELS: [&str; 3] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
];

/// Runs `helm template` with these values, or returns its error.
pub(crate) fn helm(values: &Value, args: &[&str]) -> Result<String, String> {
    let chart = root().join("deploy/chart/hostloop");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), values.to_string()).expect("it can be written");
    let out = child::command(tools::helm())
        .args([
            "template",
            "hostloop",
            text(&chart),
            "--values",
            text(file.path()),
        ])
        .args(if args.contains(&"--namespace") {
            &[][..]
        } else {
            &["--namespace", "hostloop"]
        })
        .args(args)
        .output()
        .expect("helm runs");
    if out.status.success() {
        return Ok(String::from_utf8(out.stdout).expect("YAML is UTF-8"));
    }
    Err(String::from_utf8_lossy(&out.stderr).into_owned())
}

/// The objects of the chart with these values, without its test and without what only Helm adds.
pub(crate) fn of_helm(values: &Value) -> Objects {
    let rendered = helm(values, &["--no-hooks"]).unwrap_or_else(|e| panic!("{values}: {e}"));
    let mut objects = read(&rendered);
    for (name, object) in &mut objects {
        let labels = object["metadata"]["labels"].as_object_mut();
        let labels = labels.unwrap_or_else(|| panic!("{name} has labels"));
        for label in HELM_LABELS {
            assert!(
                labels.remove(label).is_some(),
                "{name} has no label {label}"
            );
        }
    }
    objects
}

/// The objects of `scripts/render` with these arguments, without the namespace, which Helm needs
/// before it reads a chart.
pub(crate) fn of_kustomize(args: &[&str]) -> Objects {
    let mut objects = read(&deployed::render(args));
    objects
        .remove("Namespace /hostloop")
        .expect("the base has a namespace");
    objects
}

/// Reads YAML documents as objects.
pub(crate) fn read(yaml: &str) -> Objects {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("they are YAML");
    let mut objects = Objects::new();
    for mut object in documents.into_iter().filter(|object| !object.is_null()) {
        let field = |at: &str| {
            object
                .pointer(at)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (kind, namespace) = (field("/kind"), field("/metadata/namespace"));
        let key = format!("{kind} {namespace}/{}", field("/metadata/name"));
        normalise(&mut object);
        let before = objects.insert(key.clone(), object);
        assert!(before.is_none(), "{key} is there twice");
    }
    objects
}

/// Removes differences without a meaning: the order of environment variables, volumes and mounts,
/// and empty values of variables.
fn normalise(object: &mut Value) {
    let Some(pod) = object.pointer_mut("/spec/template/spec") else {
        return;
    };
    sort_by_name(&mut pod["volumes"]);
    for container in pod["containers"].as_array_mut().into_iter().flatten() {
        sort_by_name(&mut container["volumeMounts"]);
        sort_by_name(&mut container["env"]);
        for variable in container["env"].as_array_mut().into_iter().flatten() {
            if variable["value"] == json!("") {
                variable
                    .as_object_mut()
                    .expect("a variable")
                    .remove("value");
            }
        }
    }
}

fn sort_by_name(list: &mut Value) {
    if let Some(list) = list.as_array_mut() {
        list.sort_by_key(|item| item["name"].as_str().map(str::to_owned));
    }
}

/// The first container of a workload, and its pod.
pub(crate) fn pod<'a>(objects: &'a Objects, key: &str) -> (&'a Value, &'a Value) {
    let object = objects
        .get(key)
        .unwrap_or_else(|| panic!("{key} is not rendered"));
    let pod = &object["spec"]["template"]["spec"];
    (&pod["containers"][0], pod)
}
