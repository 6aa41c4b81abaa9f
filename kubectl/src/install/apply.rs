//! Applies the objects server-side.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::Error;
use super::decide::InstallPlan;
use super::survey::Survey;
use crate::api::{ApiError, Objects};
use crate::manifests::{self, Fitted, ObjectKey};

/// How long the API server may take to serve a new definition.
const ESTABLISHED: Duration = Duration::from_secs(30);

/// How many objects an application changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) created: usize,
    pub(super) changed: usize,
    pub(super) unchanged: usize,
}

/// What the server takes of the plan's objects, definitions aside.
pub(super) async fn fit(
    plan: &InstallPlan,
    survey: &Survey,
    objects: &mut Objects,
) -> Result<Fitted, Error> {
    let all = plan.settings.objects();
    let mut served = BTreeSet::new();
    for key in all.iter().map(ObjectKey::of) {
        if objects.serves(&key.version, &key.kind).await? {
            served.insert((key.version, key.kind));
        }
    }
    Ok(manifests::fit(all, survey.version, |key: &ObjectKey| {
        served.contains(&(key.version.clone(), key.kind.clone()))
    }))
}

/// Applies definitions, waits until they are served, then applies the rest.
pub(super) async fn apply(
    plan: &InstallPlan,
    rest: Vec<Value>,
    objects: &mut Objects,
) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    for definition in &plan.crds.apply {
        apply_one(definition, objects, &mut counts).await?;
    }
    for definition in &plan.crds.apply {
        until_served(definition, objects).await?;
    }
    for object in &rest {
        apply_one(object, objects, &mut counts).await?;
    }
    Ok(counts)
}

/// Has the API server check the objects; for requests that change nothing. Returns how many it
/// can't check, because their kind or their namespace does not exist yet.
pub(super) async fn rehearse(all: &[Value], objects: &mut Objects) -> Result<usize, Error> {
    let (mut counts, mut unchecked) = (Counts::default(), 0);
    for object in all {
        let key = ObjectKey::of(object);
        let namespace = ObjectKey::new("v1", "Namespace", "", &key.namespace);
        let can_be_checked = objects.serves(&key.version, &key.kind).await?
            && (key.namespace.is_empty() || objects.get(&namespace).await?.is_some());
        if can_be_checked {
            apply_one(object, objects, &mut counts).await?;
        } else {
            unchecked += 1;
        }
    }
    Ok(unchecked)
}

async fn apply_one(
    object: &Value,
    objects: &mut Objects,
    counts: &mut Counts,
) -> Result<(), Error> {
    let key = ObjectKey::of(object);
    if !objects.serves(&key.version, &key.kind).await? {
        let (object, version, kind) = (key.to_string(), key.version, key.kind);
        return Err(Error::NotServed {
            object,
            version,
            kind,
        });
    }
    let before = objects.get(&key).await?;
    if let Some(release) = before.as_ref().and_then(manifests::helm_release) {
        return Err(Error::Helm(release.to_owned()));
    }
    // Only hostloop's own objects are taken over, for example from `kubectl apply`.
    let force = before.as_ref().is_none_or(manifests::is_ours);
    let after = match objects.apply(object, force).await {
        Err(ApiError::Conflict { message, .. }) => {
            return Err(Error::Taken {
                object: key.to_string(),
                message,
            });
        }
        answer => answer?,
    };
    match before {
        None => counts.created += 1,
        Some(before) if content(&before) == content(&after) => counts.unchanged += 1,
        Some(_) => counts.changed += 1,
    }
    Ok(())
}

/// The fields of an object that are applied. Its status and its version may change at any moment:
/// the API server writes those of an admission policy soon after each start.
fn content(object: &Value) -> Value {
    let mut content = object.clone();
    if let Some(fields) = content.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = content.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    content
}

/// Waits until the API server serves the kind of a definition.
async fn until_served(definition: &Value, objects: &mut Objects) -> Result<(), Error> {
    let key = ObjectKey::of(definition);
    let kind = text(definition, "/spec/names/kind");
    let version = format!(
        "{}/{}",
        text(definition, "/spec/group"),
        text(definition, "/spec/versions/0/name")
    );
    let end = Instant::now() + ESTABLISHED;
    loop {
        objects.forget_kinds();
        let is_served = objects.serves(&version, kind).await?;
        if is_served
            && objects
                .get(&key)
                .await?
                .is_some_and(|stored| is_established(&stored))
        {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(Error::NotEstablished(key.name));
        }
        sleep(Duration::from_millis(200)).await;
    }
}

fn text<'a>(definition: &'a Value, path: &str) -> &'a str {
    definition
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    conditions
        .into_iter()
        .any(|one| one["type"] == "Established" && one["status"] == "True")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::equal(json!({}), true)]
    #[case::status(json!({"status": {"observedGeneration": 1}}), true)]
    #[case::version(json!({"metadata": {"name": "p", "generation": 1, "resourceVersion": "8"}}), true)]
    #[case::managers(
        json!({"metadata": {"name": "p", "generation": 1, "managedFields": [{"manager": "m"}]}}),
        true
    )]
    #[case::specification(json!({"spec": {"failurePolicy": "Ignore"}}), false)]
    #[case::label(json!({"metadata": {"name": "p", "generation": 1, "labels": {"a": "b"}}}), false)]
    fn only_what_is_applied_counts(#[case] changes: Value, #[case] is_same: bool) {
        let before = json!({
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "p", "generation": 1, "resourceVersion": "7"},
            "spec": {"failurePolicy": "Fail"},
        });
        let mut after = before.clone();
        for (field, value) in changes.as_object().unwrap() {
            after[field] = value.clone();
        }
        assert_eq!(content(&before) == content(&after), is_same);
    }
}
