//! What a cluster has at one moment, as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The users' namespace.
pub const NAMESPACE: &str = "u";

/// The kinds that are compared, and their plurals.
pub const KINDS: [(&str, &str); 7] = [
    ("Namespace", "namespaces"),
    ("PersistentVolumeClaim", "persistentvolumeclaims"),
    ("PersistentVolume", "persistentvolumes"),
    ("Pod", "pods"),
    ("VolumeSnapshot", "volumesnapshots"),
    ("VolumeSnapshotContent", "volumesnapshotcontents"),
    ("Event", "events"),
];

/// The objects of a cluster, and the records in the pool of its node.
#[derive(Clone, Debug, Default)]
pub struct Found {
    objects: BTreeMap<String, Vec<Value>>,
    pub(crate) records: Records,
}

impl Found {
    /// Nothing but these records.
    pub fn new(records: Records) -> Found {
        Found {
            objects: BTreeMap::new(),
            records,
        }
    }

    /// Adds the objects of a kind, but for those of other namespaces. Events about cluster-wide
    /// objects are in a namespace of Kubernetes.
    pub fn add(&mut self, kind: &str, objects: Vec<Value>) {
        let ours = objects.into_iter().filter(|object| is_ours(kind, object));
        let all = self.objects.entry(kind.to_owned()).or_default();
        all.extend(ours);
    }

    /// The objects of a kind.
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.get(kind).into_iter().flatten()
    }
}

fn is_ours(kind: &str, object: &Value) -> bool {
    let metadata = &object["metadata"];
    match kind {
        "Namespace" => metadata["name"] == NAMESPACE,
        "Event" => true,
        _ => metadata["namespace"].is_null() || metadata["namespace"] == NAMESPACE,
    }
}

/// The records in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    pub volumes: Vec<Value>,
    pub snapshots: Vec<Value>,
}

/// The pool of a node, and what it had before a history.
#[derive(Clone, Debug)]
pub struct Pool {
    dir: PathBuf,
    /// By ID.
    before: BTreeSet<String>,
}

impl Pool {
    /// The pool in a directory. What it has now does not count later.
    pub fn at(dir: &Path) -> Pool {
        let mut pool = Pool {
            dir: dir.to_path_buf(),
            before: BTreeSet::new(),
        };
        let Records { volumes, snapshots } = pool.records();
        let all = volumes.iter().chain(&snapshots);
        pool.before = all.map(|record| id(record).to_owned()).collect();
        pool
    }

    /// The records that the pool has now.
    pub fn records(&self) -> Records {
        Records {
            volumes: self.read("volumes", "volume.json"),
            snapshots: self.read("snapshots", "snapshot.json"),
        }
    }

    /// The records in one of the pool's directories. What comes or goes has none.
    fn read(&self, entries: &str, file: &str) -> Vec<Value> {
        let found = std::fs::read_dir(self.dir.join(entries));
        let found = found.into_iter().flatten().flatten();
        let read = found.filter_map(|entry| {
            let text = std::fs::read(entry.path().join(file)).ok()?;
            serde_json::from_slice::<Value>(&text).ok()
        });
        read.filter(|record| !self.before.contains(id(record)))
            .collect()
    }
}

fn id(record: &Value) -> &str {
    record["id"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::ours("Pod", json!({"metadata": {"name": "p", "namespace": "u"}}), 1)]
    #[case::of_another_namespace("Pod", json!({"metadata": {"name": "p", "namespace": "x"}}), 0)]
    #[case::cluster_wide("PersistentVolume", json!({"metadata": {"name": "v"}}), 1)]
    #[case::our_namespace("Namespace", json!({"metadata": {"name": "u"}}), 1)]
    #[case::another_namespace("Namespace", json!({"metadata": {"name": "default"}}), 0)]
    #[case::event_about_a_volume("Event", json!({"metadata": {"namespace": "default"}}), 1)]
    fn only_what_is_the_users_counts(
        #[case] kind: &str,
        #[case] object: Value,
        #[case] expected: usize,
    ) {
        let mut found = Found::default();
        found.add(kind, vec![object]);
        assert_eq!(found.all(kind).count(), expected);
    }

    fn write_record(dir: &Path, name: &str) {
        let volume = dir.join("volumes").join(name);
        std::fs::create_dir_all(&volume).unwrap();
        let record = json!({"id": name}).to_string();
        std::fs::write(volume.join("volume.json"), record).unwrap();
    }

    #[test]
    fn records_from_before_do_not_count() {
        let dir = std::env::temp_dir().join(format!("hostloop-fidelity-{}", std::process::id()));
        write_record(&dir, "old");
        std::fs::create_dir_all(dir.join("volumes/unfinished")).unwrap();
        let pool = Pool::at(&dir);
        write_record(&dir, "new");
        let records = pool.records();
        std::fs::remove_dir_all(&dir).unwrap();
        let expected = Records {
            volumes: vec![json!({"id": "new"})],
            snapshots: Vec::new(),
        };
        assert_eq!(records, expected);
    }
}
