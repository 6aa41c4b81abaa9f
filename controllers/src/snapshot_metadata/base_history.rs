//! Which snapshots were in which namespaces, also after their contents are deleted.
//!
//! Backup tools delete a snapshot's objects after the backup, and name it as the base of the next
//! one. So each handle is kept with each of its namespaces, in a ConfigMap that the controller alone
//! writes. An entry is a hash of both and the time at which it was first seen. If there are too many,
//! the oldest without a content go first.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::api::hash::sha256;

/// The most entries: 16,000 take about 0.7 MiB, and a ConfigMap may have 1 MiB.
pub const MOST: usize = 16_000;
/// Digits of an entry's hash.
const DIGITS: usize = 32;

/// The key of an entry. No namespace contains a NUL.
pub fn key(handle: &str, namespace: &str) -> String {
    let mut hash = sha256(&[namespace, "\0", handle]);
    hash.truncate(DIGITS);
    hash
}

/// The entries of the ConfigMap, with the time of each in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseHistory(BTreeMap<String, u64>);

impl BaseHistory {
    /// Reads the data of the ConfigMap. An entry with an unreadable time counts as the oldest.
    pub fn read(data: &BTreeMap<String, String>) -> Self {
        let entries = data
            .iter()
            .map(|(key, time)| (key.clone(), time.parse().unwrap_or(0)));
        BaseHistory(entries.collect())
    }

    /// True if a snapshot with this handle was in the namespace.
    pub fn has(&self, handle: &str, namespace: &str) -> bool {
        self.0.contains_key(&key(handle, namespace))
    }

    /// Adds the keys of present contents, drops old entries if there are more than `most`, and
    /// returns the merge patch of the data. The keys of present contents never make each other go:
    /// while there is no room for one, its content alone shows where it is.
    pub fn update(
        &mut self,
        present: &BTreeSet<String>,
        now: u64,
        most: usize,
    ) -> Map<String, Value> {
        let mut patch = Map::new();
        let mut gone: Vec<(u64, String)> = self
            .0
            .iter()
            .filter(|(key, _)| !present.contains(*key))
            .map(|(key, time)| (*time, key.clone()))
            .collect();
        gone.sort_unstable();
        let mut oldest = gone.into_iter();
        for key in present {
            if self.0.contains_key(key) {
                continue;
            }
            if self.0.len() >= most {
                let Some((_, dropped)) = oldest.next() else {
                    break;
                };
                self.0.remove(&dropped);
                patch.insert(dropped, Value::Null);
            }
            self.0.insert(key.clone(), now);
            patch.insert(key.clone(), json!(now.to_string()));
        }
        patch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(entries: &[(&str, &str)]) -> BaseHistory {
        let entries = entries
            .iter()
            .map(|(key, time)| ((*key).to_owned(), (*time).to_owned()));
        BaseHistory::read(&entries.collect())
    }

    #[test]
    fn entries_are_of_a_handle_and_a_namespace() {
        let mut known = BaseHistory::default();
        let present = BTreeSet::from([key("h", "ns")]);
        assert_eq!(known.update(&present, 7, 9).len(), 1);
        assert!(known.has("h", "ns"));
        for (handle, namespace) in [("h", "n"), ("sh", "n"), ("", "ns"), ("ns", "h")] {
            assert!(!known.has(handle, namespace), "{handle} {namespace}");
        }
        assert_eq!(known.update(&BTreeSet::new(), 8, 9).len(), 0);
        assert!(known.has("h", "ns"), "its content is gone");
        assert_eq!(key("h", "ns").len(), DIGITS);
    }

    #[test]
    fn the_oldest_go_first() {
        for (kept, present, most, expected) in [
            (&[][..], &["a"][..], 2, json!({"a": "9"})),
            (&[("a", "1")], &["a"], 2, json!({})),
            (&[("a", "1")], &["b"], 2, json!({"b": "9"})),
            (&[("a", "1")], &["b"], 1, json!({"a": null, "b": "9"})),
            (
                &[("a", "10"), ("b", "2"), ("c", "3")],
                &["d"],
                3,
                json!({"b": null, "d": "9"}),
            ),
            // An unreadable time.
            (
                &[("a", "1"), ("b", "x")],
                &["c"],
                2,
                json!({"b": null, "c": "9"}),
            ),
            // A content that is there keeps its entry.
            (
                &[("a", "1"), ("b", "2")],
                &["a", "c"],
                2,
                json!({"b": null, "c": "9"}),
            ),
            (&[("a", "1"), ("b", "2")], &["a", "b", "c"], 2, json!({})),
        ] {
            let mut known = history(kept);
            let present: BTreeSet<String> = present.iter().map(|key| (*key).to_owned()).collect();
            let patch = Value::Object(known.update(&present, 9, most));
            assert_eq!(patch, expected, "{kept:?} {present:?} {most}");
            let mut data: Value = kept.iter().map(|(key, time)| (*key, *time)).collect();
            json_patch::merge(&mut data, &patch);
            let data: BTreeMap<String, String> = serde_json::from_value(data).unwrap();
            assert_eq!(
                BaseHistory::read(&data),
                known,
                "{kept:?} {present:?} {most}"
            );
        }
    }

    #[test]
    fn all_entries_fit_into_a_config_map() {
        let time = u64::from(u32::MAX).to_string();
        assert!((DIGITS + time.len()) * MOST < 1024 * 1024);
    }
}
