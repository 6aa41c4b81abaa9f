//! Snapshots that are to be kept stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::oracle::adopted;
use crate::oracle::kept::Kept;

/// Checks that no snapshot is lost that was to be kept, by the contents of all snapshots.
pub(super) fn check(
    kept: &mut Kept,
    contents: &[Arc<Value>],
    data: &BTreeSet<String>,
    lost: &BTreeSet<String>,
) {
    let contents = [contents, kept.gone.take().as_slice()].concat();
    for (handle, is_kept) in adopted::kept(&contents) {
        if data.contains(handle) {
            kept.note(handle, is_kept);
        }
    }
    kept.check("snapshot", data, lost);
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
            let mut kept = Kept::default();
            check(&mut kept, &[Arc::new(content("Delete"))], &data, &lost);
            kept.gone.add(content(gone));
            let left: Vec<_> = left.map(content).into_iter().map(Arc::new).collect();
            check(&mut kept, &left, &data, &lost);
            assert_eq!(kept.is_kept("s"), Some(expected), "{gone} {left:?}");
        }
    }
}
