//! Adds and removes finalizers without overwriting concurrent writes of other clients.

use kube::ResourceExt;
use serde_json::json;

use crate::cache::Store;
use crate::client::{ApiError, Kube, Resource};

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
        let mut all = object.finalizers().to_vec();
        all.push(finalizer.to_owned());
        let patch = json!({"metadata": {
            "uid": object.uid(),
            "resourceVersion": object.resource_version(),
            "finalizers": all,
        }});
        match kube.merge(&object, patch).await {
            Ok(written) => return note(watch, written),
            Err(error) if error.is_conflict() && tries < TRIES => {
                object = again(kube, &object).await?.ok_or(error)?;
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Removes a finalizer; writes nothing if the object lacks it or is gone.
pub(crate) async fn remove<K: Resource>(
    kube: &Kube,
    watch: Option<&Store<K>>,
    object: &K,
    finalizer: &str,
) -> Result<(), ApiError> {
    let mut object = object.clone();
    let mut tries = 1;
    loop {
        let Some(at) = object.finalizers().iter().position(|one| one == finalizer) else {
            return Ok(());
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
                return Ok(());
            }
            Ok(written) => return note(watch, written),
            Err(ApiError::NotFound { .. }) => return Ok(()),
            // The API server has several errors for a JSON patch that does not apply.
            Err(error @ (ApiError::Conflict { .. } | ApiError::Rejected { code: 422, .. }))
                if tries < TRIES =>
            {
                match again(kube, &object).await? {
                    None => return Ok(()),
                    Some(now) if now.finalizers() == object.finalizers() => return Err(error),
                    Some(now) => object = now,
                }
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn note<K: Resource>(watch: Option<&Store<K>>, written: K) -> Result<(), ApiError> {
    if let Some(watch) = watch {
        watch.apply_write(written);
    }
    Ok(())
}

/// Reads the same object again; `None` if it is gone or another object has its name.
async fn again<K: Resource>(kube: &Kube, object: &K) -> Result<Option<K>, ApiError> {
    let namespace = object.namespace().unwrap_or_default();
    let now = kube.get::<K>(&namespace, &object.name_any()).await?;
    Ok(now.filter(|now| now.uid() == object.uid()))
}
