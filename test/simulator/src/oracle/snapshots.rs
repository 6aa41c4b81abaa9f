//! Snapshots that are to be kept stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use hostloop_fake_api::FakeApi;
use serde_json::Value;

use crate::oracle::adopted;
use crate::oracle::gone::Gone;
use crate::oracle::kept::Kept;

/// What the oracle remembers of snapshots.
#[derive(Default)]
pub(super) struct Snapshots {
    kept: Kept,
    /// The contents that went since the last look.
    gone: Gone,
}

impl Snapshots {
    /// Watches for contents that go from now on.
    pub(super) fn watch(&self, api: &FakeApi) {
        self.gone.watch(api, "VolumeSnapshotContent");
    }

    /// The API server went back to a backup.
    pub(super) fn went_back(&mut self, lost: &BTreeSet<String>) {
        self.kept.went_back(lost);
        self.gone.went_back();
    }

    /// True for the handle of a snapshot that is to stay, and false for one that goes with its
    /// object.
    pub(super) fn is_kept(&self, handle: &str) -> Option<bool> {
        self.kept.is_kept(handle)
    }

    /// Checks that no snapshot is lost that was to be kept, by the contents of all snapshots.
    pub(super) fn check(
        &mut self,
        contents: &[Arc<Value>],
        data: &BTreeSet<String>,
        lost: &BTreeSet<String>,
    ) {
        let contents = [contents, self.gone.take().as_slice()].concat();
        for (handle, is_kept) in adopted::kept(&contents) {
            if data.contains(handle) {
                self.kept.note(handle, is_kept);
            }
        }
        self.kept.check("snapshot", data, lost);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn content(policy: &str) -> Value {
        json!({"spec": {"deletionPolicy": policy}, "status": {"snapshotHandle": "s"}})
    }

    #[test]
    fn a_content_that_went_since_the_last_look_says_whether_its_data_stays() {
        let (data, lost) = (BTreeSet::from(["s".to_owned()]), BTreeSet::new());
        for (gone, left, expected) in [
            ("Retain", None, true),
            ("Delete", None, false),
            ("Retain", Some("Retain"), true),
            ("Retain", Some("Delete"), false),
        ] {
            let mut snapshots = Snapshots::default();
            snapshots.check(&[Arc::new(content("Delete"))], &data, &lost);
            snapshots.gone.add(content(gone));
            let left: Vec<_> = left.map(content).into_iter().map(Arc::new).collect();
            snapshots.check(&left, &data, &lost);
            assert_eq!(snapshots.is_kept("s"), Some(expected), "{gone} {left:?}");
        }
    }
}
