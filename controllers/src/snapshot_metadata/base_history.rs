//! Which snapshots were in which namespaces, also after their contents are deleted.
//!
//! Backup tools delete a snapshot's objects after the backup, and name it as the base of the next
//! one. So each handle is kept with each of its namespaces, in a ConfigMap that the controller alone
//! writes. An entry is a hash of both and the time at which it was first seen. If there are too many,
//! the oldest of the namespace with the most go first, and those without a content before others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::api::hash::sha256;

/// The most entries: 16,000 take about 0.7 MiB, and a ConfigMap may have 1 MiB.
pub(super) const MOST: usize = 16_000;
/// Digits of an entry's key.
const DIGITS: usize = 32;
/// Those that are of the namespace alone.
const NAMESPACE_DIGITS: usize = 8;

/// The key of an entry. No namespace contains a NUL.
pub(super) fn key(handle: &str, namespace: &str) -> String {
    let mut key = sha256(&[namespace]);
    key.truncate(NAMESPACE_DIGITS);
    key.push_str(&sha256(&[namespace, "\0", handle]));
    key.truncate(DIGITS);
    key
}

/// The part of a key that all of its namespace have.
fn namespace_part(key: &str) -> &str {
    key.get(..NAMESPACE_DIGITS).unwrap_or(key)
}

/// The entries of the ConfigMap, with the time of each in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BaseHistory(BTreeMap<String, u64>);

impl BaseHistory {
    /// Reads the data of the ConfigMap. An entry with an unreadable time counts as the oldest.
    pub(super) fn read(data: &BTreeMap<String, String>) -> Self {
        let entries = data
            .iter()
            .map(|(key, time)| (key.clone(), time.parse().unwrap_or(0)));
        BaseHistory(entries.collect())
    }

    /// True if a snapshot with this handle was in the namespace.
    pub(super) fn has(&self, handle: &str, namespace: &str) -> bool {
        self.0.contains_key(&key(handle, namespace))
    }

    /// Adds the keys of present contents, drops entries if there are more than `most`, and returns the
    /// merge patch of the data. While there is no room for the key of a present content, its content
    /// alone shows where it is.
    pub(super) fn update(
        &mut self,
        present: &BTreeSet<String>,
        now: u64,
        most: usize,
    ) -> Map<String, Value> {
        let mut patch = Map::new();
        let mut namespaces = Namespaces::of(&self.0, present);
        for key in present {
            if self.0.contains_key(key) {
                continue;
            }
            if self.0.len() >= most {
                let Some(dropped) = namespaces.take_for(key) else {
                    continue;
                };
                self.0.remove(&dropped);
                patch.insert(dropped, Value::Null);
            }
            namespaces.add(true, now, key);
            self.0.insert(key.clone(), now);
            patch.insert(key.clone(), json!(now.to_string()));
        }
        patch
    }
}

/// An entry: whether its content is there, its time, and its key. The first one goes first.
type Entry = (bool, u64, String);

/// The entries by the part of their keys that is of the namespace.
struct Namespaces(BTreeMap<String, BTreeSet<Entry>>);

impl Namespaces {
    fn of(entries: &BTreeMap<String, u64>, present: &BTreeSet<String>) -> Self {
        let mut namespaces = Namespaces(BTreeMap::new());
        for (key, time) in entries {
            namespaces.add(present.contains(key), *time, key);
        }
        namespaces
    }

    fn add(&mut self, is_present: bool, time: u64, key: &str) {
        let entries = self.0.entry(namespace_part(key).to_owned()).or_default();
        entries.insert((is_present, time, key.to_owned()));
    }

    /// Takes the entry that makes room for a new one: of the namespace with the most, so that a user
    /// who makes snapshots without end only loses own entries. A namespace gives one up to another that
    /// has fewer. The entry of a present content comes back later, so it goes only if the other one has
    /// fewer afterwards, too.
    fn take_for(&mut self, key: &str) -> Option<String> {
        let new = namespace_part(key);
        let own = self.0.get(new).map_or(0, BTreeSet::len);
        let chosen = self
            .0
            .iter()
            .filter_map(|(name, entries)| Some((name, entries.len(), entries.first()?)))
            .filter(|(name, number, (is_present, ..))| {
                if *name == new {
                    !is_present
                } else {
                    *number > own + usize::from(*is_present)
                }
            })
            .max_by_key(|(_, number, first)| (*number, Reverse(*first)))
            .map(|(name, ..)| name.clone())?;
        let (_, _, taken) = self.0.get_mut(&chosen)?.pop_first()?;
        Some(taken)
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

    /// The names of namespaces have as many characters as their part of a key.
    #[test]
    fn a_namespace_loses_entries_to_smaller_ones_alone() {
        for (kept, present, expected) in [
            // A user makes snapshots without end, and deletes them.
            (
                &[("attacker1", "5"), ("attacker2", "6"), ("backups.1", "1")][..],
                &["attacker3"][..],
                json!({"attacker1": null, "attacker3": "9"}),
            ),
            // Or keeps them.
            (
                &[("attacker1", "5"), ("attacker2", "6"), ("backups.1", "1")],
                &["attacker1", "attacker2", "attacker3"],
                json!({}),
            ),
            // Those that it keeps make room for another namespace, which is smaller afterwards, too.
            (
                &[("attacker1", "5"), ("attacker2", "6"), ("attacker3", "7")],
                &["attacker1", "attacker2", "attacker3", "backups.1"],
                json!({"attacker1": null, "backups.1": "9"}),
            ),
            (
                &[("attacker1", "5"), ("attacker2", "6"), ("backups.1", "1")],
                &["attacker1", "attacker2", "backups.1", "backups.2"],
                json!({}),
            ),
        ] {
            let mut known = history(kept);
            let present: BTreeSet<String> = present.iter().map(|key| (*key).to_owned()).collect();
            let patch = Value::Object(known.update(&present, 9, 3));
            assert_eq!(patch, expected, "{kept:?} {present:?}");
            let again = known.update(&present, 10, 3);
            assert!(again.is_empty(), "{kept:?} {present:?}: {again:?}");
        }
        let (one, other) = (key("h", "ns"), key("i", "ns"));
        assert_eq!(namespace_part(&one), namespace_part(&other));
        assert_ne!(namespace_part(&one), namespace_part(&key("h", "n")));
    }

    #[test]
    fn all_entries_fit_into_a_config_map() {
        let time = u64::from(u32::MAX).to_string();
        assert!((DIGITS + time.len()) * MOST < 1024 * 1024);
    }
}
