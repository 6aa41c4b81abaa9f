//! Adds and removes finalizers without overwriting concurrent writes of other clients.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::PartialObjectMeta;
use serde_json::{Value, json};

use crate::cache::Store;
use crate::client::{ApiError, Kube, Resource};
use crate::kept_fields::METADATA;

/// How often a write is tried while its object keeps changing.
const TRIES: usize = 5;

/// Adds a finalizer; writes nothing if the object has it. Fails if the object is gone.
pub(crate) async fn add<K: Resource>(
    kube: &Kube,
    watch: Option<&Store<K>>,
    object: &K,
    finalizer: &str,
) -> Result<(), ApiError> {
    let mut object = object.clone();
    let mut tries = 1;
    loop {
        if object.has_finalizer(finalizer) {
            return Ok(());
        }
        match kube.json(&object, addition(&object, finalizer)).await {
            Ok(written) => {
                note(watch, &written);
                return Ok(());
            }
            Err(error) if error.is_conflict() && tries < TRIES => {
                object = kube.again(&object).await?.ok_or(error)?;
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A patch that applies even if other fields have changed since. JSON patch can't test a missing
/// list, so the first finalizer is bound to the version that was read.
fn addition<K: Resource>(object: &K, finalizer: &str) -> Value {
    let uid = json!({"op": "test", "path": "/metadata/uid", "value": object.uid()});
    match object.finalizers() {
        [] => json!([
            uid,
            {"op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version()},
            {"op": "add", "path": "/metadata/finalizers", "value": [finalizer]},
        ]),
        present => json!([
            uid,
            {"op": "test", "path": "/metadata/finalizers", "value": present},
            {"op": "add", "path": "/metadata/finalizers/-", "value": finalizer},
        ]),
    }
}

/// Removes a finalizer; writes nothing if the object lacks it. Returns the object without it, or
/// `None` if the object is gone.
pub(crate) async fn remove<K: Resource>(
    kube: &Kube,
    watch: Option<&Store<K>>,
    object: &K,
    finalizer: &str,
) -> Result<Option<K>, ApiError> {
    let mut object = object.clone();
    let mut tries = 1;
    loop {
        let Some(at) = object.finalizers().iter().position(|one| one == finalizer) else {
            return Ok(Some(object));
        };
        let path = format!("/metadata/finalizers/{at}");
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": object.uid()},
            {"op": "test", "path": path, "value": finalizer},
            {"op": "remove", "path": path},
        ]);
        match kube.json(&object, patch).await {
            // Removing the last finalizer of an object that is being deleted deletes it.
            Ok(written) if written.finalizers().is_empty() && written.is_deleting() => {
                return Ok(None);
            }
            Ok(written) => {
                note(watch, &written);
                return Ok(Some(written));
            }
            Err(ApiError::NotFound { .. }) => return Ok(None),
            // The API server has several errors for a JSON patch that does not apply.
            Err(error @ (ApiError::Conflict { .. } | ApiError::Rejected { code: 422, .. }))
                if tries < TRIES =>
            {
                match kube.again(&object).await? {
                    None => return Ok(None),
                    Some(now) if now.finalizers() == object.finalizers() => return Err(error),
                    Some(now) => object = now,
                }
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What became of an object that the caches may leave out.
#[derive(Debug)]
pub(crate) enum LetGo {
    /// It does not exist: not every name of what they leave out is known.
    NotThere,
    /// It is not being deleted, and stays as it is.
    Stays,
    /// It is being deleted, and has these metadata.
    Deleted(Box<ObjectMeta>),
}

/// Removes these finalizers of an object that is being deleted and for which the caches have no room:
/// no other decision is made about it, and its deletion must not wait forever.
pub(crate) async fn let_go<K: Resource>(
    kube: &Kube,
    namespace: &str,
    name: &str,
    finalizers: &[&str],
) -> Result<LetGo, ApiError> {
    let found: Option<PartialObjectMeta<K>> = kube.get_metadata(namespace, name, &METADATA).await?;
    let Some(object) = found else {
        return Ok(LetGo::NotThere);
    };
    if object.metadata.deletion_timestamp.is_none() {
        return Ok(LetGo::Stays);
    }
    let (gone, kept): (Vec<&String>, Vec<&String>) = object
        .finalizers()
        .iter()
        .partition(|one| finalizers.contains(&one.as_str()));
    if !gone.is_empty() {
        let patch = json!({"metadata": {"uid": object.uid(),
            "resourceVersion": object.resource_version(), "finalizers": kept}});
        kube.merge_metadata(&object, patch, &METADATA).await?;
    }
    Ok(LetGo::Deleted(Box::new(object.metadata)))
}

fn note<K: Resource>(watch: Option<&Store<K>>, written: &K) {
    if let Some(watch) = watch {
        watch.apply_write(written.clone());
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;

    use super::*;
    use crate::testing::{DRIVER, World, read, volume, with};

    #[tokio::test]
    async fn other_clients_may_write_meanwhile() {
        for (seen, now, added, removed) in [
            (&[][..], &[][..], &["f"][..], &[][..]),
            (&["x"], &["x"], &["x", "f"], &["x"]),
            (&["x", "f"], &["x", "f"], &["x", "f"], &["x"]),
            (&[], &["x"], &["x", "f"], &["x"]),
            (&["x"], &["y", "x"], &["y", "x", "f"], &["y", "x"]),
            (&["f"], &["x", "f"], &["x", "f"], &["x"]),
        ] {
            let world = World::new(&[]);
            let put = |finalizers: &[&str]| {
                let metadata = json!({"uid": "u", "finalizers": finalizers});
                world.api.put(with(
                    volume("v", DRIVER, "h"),
                    json!({ "metadata": metadata }),
                ))
            };
            let left = || {
                let volume = world.api.get("persistentvolumes/v").expect("the volume");
                let volume: PersistentVolume = read(volume);
                volume.finalizers().to_vec()
            };
            let volume: PersistentVolume = read(put(seen));
            put(now);
            add(&world.context.kube, None, &volume, "f")
                .await
                .expect("a write");
            // Only a list that is missing or has changed needs a second attempt.
            let attempts = match seen {
                _ if seen.contains(&"f") => 0,
                [_, ..] if seen == now => 1,
                _ => 2,
            };
            assert_eq!(world.api.writes().len(), attempts, "{seen:?} {now:?}");
            assert_eq!(left(), added, "{seen:?} {now:?}");
            remove(&world.context.kube, None, &volume, "f")
                .await
                .expect("a write");
            let expected = if seen.contains(&"f") { removed } else { added };
            assert_eq!(left(), expected, "{seen:?} {now:?}");
        }
    }

    #[tokio::test]
    async fn a_new_object_of_the_same_name_is_left_alone() {
        let world = World::new(&[]);
        let put = |uid: &str| {
            let metadata = json!({"uid": uid, "finalizers": ["x"]});
            world.api.put(with(
                volume("v", DRIVER, "h"),
                json!({ "metadata": metadata }),
            ))
        };
        let old: PersistentVolume = read(put("old"));
        put("new");
        let added = add(&world.context.kube, None, &old, "f").await;
        assert!(added.is_err_and(|error| error.is_conflict()));
        remove(&world.context.kube, None, &old, "x")
            .await
            .expect("nothing to do");
        let now = world.api.get("persistentvolumes/v").expect("the volume");
        assert_eq!(now["metadata"]["finalizers"], json!(["x"]));
    }
}
