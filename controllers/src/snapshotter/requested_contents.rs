//! The contents for which this process has asked the driver for a snapshot, and has no final answer
//! yet.
//!
//! An annotation of the content says so, too, and outlives the process. But the API server may go
//! back to a backup without the annotation, while the driver goes on. If the content were released
//! then, nothing would delete the snapshot.

use std::collections::HashMap;

use kube::ResourceExt;
use parking_lot::Mutex;

use crate::snapshots::content::Content;

/// The most contents that are noted without a look at which of them are gone.
const MANY: usize = 1000;

/// The UIDs of the contents, by their names. A content may be gone for a moment: a backup may lack
/// the label that leads to its node, too.
#[derive(Default)]
pub(super) struct RequestedContents(Mutex<HashMap<String, String>>);

impl RequestedContents {
    /// Notes a request. If there are many contents, it forgets those that are gone.
    pub(super) fn add<K: Content>(&self, content: &K, is_there: impl Fn(&str) -> bool) {
        let uid = content.uid().unwrap_or_default();
        let mut requested = self.0.lock();
        if requested.len() >= MANY {
            requested.retain(|name, _| is_there(name));
        }
        requested.insert(content.name_any(), uid);
    }

    pub(super) fn has<K: Content>(&self, content: &K) -> bool {
        let uid = content.uid().unwrap_or_default();
        self.0.lock().get(&content.name_any()) == Some(&uid)
    }

    /// Forgets the content of this name: the driver gave a final answer.
    pub(super) fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshots::VolumeSnapshotContent;

    fn content(name: &str, uid: &str) -> VolumeSnapshotContent {
        crate::testing::read(json!({"metadata": {"name": name, "uid": uid}, "spec": {
            "driver": "d", "deletionPolicy": "Delete", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {}}}))
    }

    #[test]
    fn of_many_contents_those_that_are_gone_are_forgotten() {
        let requested = RequestedContents::default();
        for number in 0..MANY {
            requested.add(&content(&number.to_string(), "u"), |_| false);
        }
        assert!(requested.has(&content("0", "u")) && requested.has(&content("1", "u")));
        requested.add(&content("new", "u"), |name| name == "0");
        for (name, uid, expected) in [
            ("0", "u", true),
            ("1", "u", false),
            ("new", "u", true),
            ("new", "v", false),
        ] {
            assert_eq!(requested.has(&content(name, uid)), expected, "{name} {uid}");
        }
        requested.remove("new");
        assert!(!requested.has(&content("new", "u")));
    }
}
