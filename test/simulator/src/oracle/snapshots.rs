//! Snapshots that are to be kept stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::oracle::adopted;
use crate::oracle::kept::Kept;

/// What the oracle remembers of snapshots.
#[derive(Default)]
pub(super) struct Snapshots {
    kept: Kept,
}

impl Snapshots {
    /// The API server went back to a backup.
    pub(super) fn went_back(&mut self, lost: &BTreeSet<String>) {
        self.kept.went_back(lost);
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
        for (handle, is_kept) in adopted::kept(contents) {
            if data.contains(handle) {
                self.kept.note(handle, is_kept);
            }
        }
        self.kept.check("snapshot", data, lost);
    }
}
