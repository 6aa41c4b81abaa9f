//! The pool of a node, of which only the records count.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hostloop_report::pool_files::{SNAPSHOT_RECORD, SNAPSHOTS, VOLUME_RECORD, VOLUMES};
use serde_json::Value;

/// The records in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    pub volumes: Vec<Value>,
    pub snapshots: Vec<Value>,
}

/// The pool of a node, and what it had before a history.
#[derive(Clone, Debug)]
pub struct RecordDirectory {
    dir: PathBuf,
    /// By ID.
    before: BTreeSet<String>,
}

impl RecordDirectory {
    /// The pool in a directory. What it has now does not count later.
    pub fn at(dir: &Path) -> RecordDirectory {
        let mut pool = RecordDirectory {
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
            volumes: self.read(VOLUMES, VOLUME_RECORD),
            snapshots: self.read(SNAPSHOTS, SNAPSHOT_RECORD),
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
    use serde_json::json;

    use super::*;

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
        let pool = RecordDirectory::at(&dir);
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
