//! What objects said that go between two looks.

use std::sync::Arc;

use hostloop_fake_api::{FakeApi, Write};
use parking_lot::Mutex;
use serde_json::Value;

use crate::model::view::text;

/// The objects of a kind that went since the last look, as they were last. A user may say that the
/// data stays, and delete the object at once. Or its deletion waits until the data is there.
#[derive(Default)]
pub(super) struct Gone(Arc<Mutex<Vec<Arc<Value>>>>);

impl Gone {
    /// Watches for objects of a kind that go from now on.
    pub(super) fn watch(&self, api: &FakeApi, kind: &'static str) {
        let gone = self.0.clone();
        api.on_write(move |write| gone.lock().extend(gone_with(write, kind)));
    }

    /// Takes those that went since they were last taken.
    pub(super) fn take(&self) -> Vec<Arc<Value>> {
        std::mem::take(&mut *self.0.lock())
    }

    /// The API server went back to a backup, which may have them.
    pub(super) fn went_back(&self) {
        self.0.lock().clear();
    }

    #[cfg(test)]
    pub(super) fn add(&self, object: Value) {
        self.0.lock().push(Arc::new(object));
    }
}

/// The object of a kind that goes with this write, as it was last.
fn gone_with(write: &Write, kind: &str) -> Option<Arc<Value>> {
    let object = write.old.filter(|_| write.new.is_none())?;
    (text(object, "/kind") == kind).then(|| Arc::new(object.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_goes_with_a_write() {
        let [content, snapshot] =
            ["VolumeSnapshotContent", "VolumeSnapshot"].map(|kind| json!({"kind": kind}));
        for (old, new, expected) in [
            (Some(&content), None, true),
            (Some(&content), Some(&content), false),
            (None, Some(&content), false),
            (Some(&snapshot), None, false),
        ] {
            let write = Write {
                who: "user",
                method: "DELETE",
                path: "/",
                old,
                new,
            };
            let gone = gone_with(&write, "VolumeSnapshotContent");
            assert_eq!(gone.is_some(), expected, "{write:?}");
        }
    }

    #[test]
    fn each_is_taken_once() {
        let gone = Gone::default();
        gone.add(json!({"kind": "VolumeSnapshotContent"}));
        assert_eq!(gone.take().len(), 1);
        assert!(gone.take().is_empty());
        gone.add(json!({"kind": "VolumeSnapshotContent"}));
        gone.went_back();
        assert!(gone.take().is_empty());
    }
}
