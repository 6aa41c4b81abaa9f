//! Fields of objects that many tests read.

use serde_json::Value;

/// A field as text, which is empty if there is none.
pub fn text(field: &Value) -> &str {
    field.as_str().unwrap_or_default()
}

/// The elements of a list, if there is one.
pub fn list(field: &Value) -> impl Iterator<Item = &Value> {
    field.as_array().into_iter().flatten()
}

pub fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

/// The driver's ID of a PersistentVolume.
pub fn handle(volume: &Value) -> &str {
    text(&volume["spec"]["csi"]["volumeHandle"])
}

pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    list(&object["metadata"]["finalizers"]).any(|one| one == finalizer)
}

/// True if a condition of this type is true.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    let is = |c: &Value| c["type"] == kind && c["status"] == "True";
    list(&object["status"]["conditions"]).any(is)
}

/// True for a bound claim or volume.
pub fn is_bound(object: &Value) -> bool {
    object["status"]["phase"] == "Bound"
}

/// True for a snapshot or group of snapshots that can be restored.
pub fn is_ready_to_use(snapshot: &Value) -> bool {
    snapshot["status"]["readyToUse"] == true
}
