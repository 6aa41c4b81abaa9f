//! Records that become unreadable while the driver's process is dead.

use std::io;
use std::path::{Path, PathBuf};

use hostloop_report::pool_files::{SNAPSHOT_RECORD, SNAPSHOTS, VOLUME_RECORD, VOLUMES};

use crate::history::trouble::Damage;
use crate::machine::Machine;
use crate::trace;

/// Where a pool has records: a folder with a folder for each object, and the name of the file in
/// it.
const RECORDS: [(&str, &str); 3] = [
    ("groups", "group.json"),
    (SNAPSHOTS, SNAPSHOT_RECORD),
    (VOLUMES, VOLUME_RECORD),
];

impl Machine {
    /// Damages a record of the pool, by its number. There may be fewer: then it counts on from the
    /// first. The driver's process must be dead.
    pub(crate) fn damage(&mut self, number: u64, damage: Damage) {
        let mut records = records_in(&self.site.pool());
        if records.is_empty() {
            trace::line("world", "there is no record");
            return;
        }
        let at = usize::try_from(number).unwrap_or_default() % records.len();
        let (handle, path) = records.swap_remove(at);
        match spoil(&path, damage) {
            Ok(()) => {
                trace::line("world", format!("the record of {handle} {damage}"));
                self.damaged.insert(handle, path);
            }
            Err(error) => trace::violation(format!("{}: {error}", path.display())),
        }
    }

    /// The handles of volumes, snapshots and groups with a damaged record. Deleting one removes its
    /// record.
    pub(crate) fn unreadable(&self) -> impl Iterator<Item = &str> {
        let left = self.damaged.iter().filter(|(_, record)| record.exists());
        left.map(|(handle, _)| handle.as_str())
    }
}

/// Damages a file.
pub(super) fn spoil(file: &Path, damage: Damage) -> io::Result<()> {
    let content = std::fs::read(file)?;
    std::fs::write(file, damage.of(&content))
}

/// The records in a pool, by the handles of their objects, in one order for all runs.
pub(super) fn records_in(pool: &Path) -> Vec<(String, PathBuf)> {
    let mut records = Vec::new();
    for (folder, file) in RECORDS {
        let entries = std::fs::read_dir(pool.join(folder)).into_iter();
        for entry in entries.flatten().flatten() {
            let handle = entry.file_name().to_string_lossy().into_owned();
            let record = entry.path().join(file);
            if record.exists() {
                records.push((handle, record));
            }
        }
    }
    records.sort();
    records
}
