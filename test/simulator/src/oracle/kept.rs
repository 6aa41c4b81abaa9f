//! Data that is to be kept stays, whatever becomes of its objects.

use std::collections::{BTreeMap, BTreeSet};

use crate::oracle::gone::Gone;
use crate::trace;

/// What its objects say of data that was in a pool.
#[derive(Default)]
pub(super) struct Kept {
    /// True for what is to stay.
    by_handle: BTreeMap<String, bool>,
    /// The objects that went since the last look.
    pub(super) gone: Gone,
}

impl Kept {
    /// Notes what the objects of this data say now.
    pub(super) fn note(&mut self, handle: &str, is_kept: bool) {
        self.by_handle.insert(handle.to_owned(), is_kept);
    }

    /// Checks that nothing is lost that was to stay, by the handles of what there is. What a backup
    /// brought back without its data is `lost` by that. `what` names the kind of data.
    pub(super) fn check(&mut self, what: &str, data: &BTreeSet<String>, lost: &BTreeSet<String>) {
        for (handle, is_kept) in &mut self.by_handle {
            if *is_kept && !data.contains(handle) && !lost.contains(handle) {
                trace::violation(format!("data lost: the {what} {handle} was to be kept"));
                *is_kept = false;
            }
        }
    }

    /// The API server went back to a backup. What was deleted since is not lost by this.
    pub(super) fn went_back(&mut self, lost: &BTreeSet<String>) {
        for (handle, is_kept) in &mut self.by_handle {
            *is_kept &= !lost.contains(handle);
        }
        self.gone.went_back();
    }

    /// True for data that is to stay, false for data that goes with its object. `None` for data
    /// that never had one.
    pub(super) fn is_kept(&self, handle: &str) -> Option<bool> {
        self.by_handle.get(handle).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_backup_brings_back_is_not_kept() {
        let mut kept = Kept::default();
        for (handle, is_kept) in [("a", true), ("b", true), ("c", false)] {
            kept.note(handle, is_kept);
        }
        kept.went_back(&BTreeSet::from(["b".to_owned()]));
        let all = ["a", "b", "c", "d"].map(|handle| kept.is_kept(handle));
        assert_eq!(all, [Some(true), Some(false), Some(false), None]);
    }
}
