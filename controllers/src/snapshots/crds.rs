//! The CustomResourceDefinitions of the snapshot kinds, made from their types.
//!
//! What the types can't say stands here: the columns `kubectl get` shows, and the rules by which
//! the API server refuses objects that could never work. Rules and names agree with those other
//! snapshot-controllers bring, so that it makes no difference whose definitions a cluster has.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResourceExt, Resource};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{
    VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotClass, VolumeSnapshotContent,
};

mod ensure;
mod rules;
mod schema;
mod yaml;

pub use ensure::ensure_crds;
pub use yaml::to_yaml;

use rules::Details;

/// All six, the single ones first.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        finished(specless::<VolumeSnapshotClass>(), &rules::SNAPSHOT_CLASS),
        finished(VolumeSnapshotContent::crd(), &rules::SNAPSHOT_CONTENT),
        finished(VolumeSnapshot::crd(), &rules::SNAPSHOT),
        finished(specless::<VolumeGroupSnapshotClass>(), &rules::GROUP_CLASS),
        finished(VolumeGroupSnapshotContent::crd(), &rules::GROUP_CONTENT),
        finished(VolumeGroupSnapshot::crd(), &rules::GROUP),
    ]
}

/// The file a definition is kept in.
pub fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural)
}

/// The definition of a kind whose fields stand beside its metadata.
fn specless<K: Resource<DynamicType = ()> + schemars::JsonSchema>() -> CustomResourceDefinition {
    let schema = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(kube::core::schema::StructuralSchemaRewriter)
        .into_generator()
        .into_root_schema_for::<K>();
    let (kind, plural) = (K::kind(&()), K::plural(&()));
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{}", K::group(&()))},
        "spec": {
            "group": K::group(&()),
            "names": {
                "kind": kind,
                "plural": plural,
                "singular": kind.to_lowercase(),
            },
            "scope": "Cluster",
            "versions": [{
                "name": K::version(&()),
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    });
    typed(crd)
}

/// A definition with what its type doesn't say.
fn finished(crd: CustomResourceDefinition, details: &Details) -> CustomResourceDefinition {
    let mut crd = serde_json::to_value(crd).unwrap_or_default();
    crd["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": details.approved});
    let names = &mut crd["spec"]["names"];
    names["listKind"] = json!(format!(
        "{}List",
        names["kind"].as_str().unwrap_or_default()
    ));
    names["shortNames"] = json!(details.short_names);
    // An empty list of categories says nothing.
    if let Some(names) = names.as_object_mut() {
        names.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
    }
    let version = &mut crd["spec"]["versions"][0];
    version["additionalPrinterColumns"] = details.columns.iter().map(column).collect();
    let root = &mut version["schema"]["openAPIV3Schema"];
    schema::tidy(root);
    if root["properties"]["spec"].is_object() {
        // The derive's own words say nothing.
        root["description"] = root["properties"]["spec"]["description"].clone();
    }
    for (path, description) in details.borrowed {
        schema::describe_anew(root, path, description);
    }
    for (path, rules) in details.rules {
        schema::at(root, path)["x-kubernetes-validations"] = rules
            .iter()
            .map(|(rule, message)| json!({"rule": rule, "message": message}))
            .collect();
    }
    for (path, key, value) in details.bounds {
        schema::at(root, path)[*key] = value.into();
    }
    let stored = version.clone();
    let others = details.also_served.iter().map(|name| {
        let mut version = stored.clone();
        version["name"] = json!(name);
        version["storage"] = json!(false);
        version
    });
    // Without a conversion webhook, the API server only replaces `apiVersion`, so all versions need
    // the same schema.
    if let Some(versions) = crd["spec"]["versions"].as_array_mut() {
        versions.extend(others);
    }
    typed(crd)
}

fn column((name, kind, path): &(&str, &str, &str)) -> Value {
    json!({"name": name, "type": kind, "jsonPath": path})
}

fn typed(crd: Value) -> CustomResourceDefinition {
    serde_json::from_value(crd).expect("a definition built here has the form of one")
}

#[cfg(test)]
mod tests;
