//! Damage to `node.json` and `state.json` of a pool.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::history::trouble::{Damage, PoolFile};
use crate::machine::Machine;
use crate::machine::damaged::{records_in, spoil};
use crate::{disk, trace};

impl Machine {
    /// Damages a file, if there is one. Of several, the number selects one. The driver's
    /// process must be dead.
    pub(crate) fn damage_file(&mut self, file: PoolFile, number: u64, damage: Damage) {
        let mut files = files_in(&self.site.pool(), file);
        if files.is_empty() {
            trace::line("world", format!("there is no {file}"));
            return;
        }
        let at = usize::try_from(number).unwrap_or_default() % files.len();
        let path = files.swap_remove(at);
        match spoil(&path, damage) {
            Ok(()) => {
                trace::line("world", format!("{} {damage}", path.display()));
                self.is_owner_damaged |= file == PoolFile::Owner;
            }
            Err(error) => trace::violation(format!("{}: {error}", path.display())),
        }
    }

    /// True if nothing says which node has the pool.
    pub(crate) fn lacks_owner(&self) -> bool {
        // A power cut may have taken the damaged file.
        let files = files_in(&self.site.pool(), PoolFile::Owner);
        self.is_owner_damaged && files.iter().any(|file| !is_json(file))
    }

    /// Deletes a damaged note of the pool's node, as the driver advises.
    pub(crate) fn follow_advice(&mut self) {
        if !std::mem::take(&mut self.is_owner_damaged) {
            return;
        }
        for path in files_in(&self.site.pool(), PoolFile::Owner) {
            trace::line("world", format!("{} is deleted", path.display()));
            self.report(std::fs::remove_file(path));
        }
        self.report(disk::settle(self.site.names.node));
    }
}

fn is_json(file: &Path) -> bool {
    let content = std::fs::read(file).unwrap_or_default();
    serde_json::from_slice::<Value>(&content).is_ok()
}

/// The files of this kind in a pool, in one order for all runs.
fn files_in(pool: &Path, file: PoolFile) -> Vec<PathBuf> {
    let all = match file {
        PoolFile::Owner => vec![pool.join(file.name())],
        PoolFile::State => {
            let records = records_in(pool).into_iter();
            let beside = records.map(|(_, record)| record.with_file_name(file.name()));
            beside.collect()
        }
    };
    all.into_iter().filter(|path| path.exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_beside_records_and_in_the_pool() {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = dir.path();
        for file in PoolFile::ALL {
            assert!(files_in(pool, file).is_empty(), "{file}");
        }
        for (folder, files) in [
            ("", vec!["node.json"]),
            ("volumes/b", vec!["volume.json", "state.json"]),
            ("volumes/a", vec!["volume.json"]),
            ("volumes/c", vec!["state.json"]),
            ("groups/g", vec!["group.json"]),
        ] {
            std::fs::create_dir_all(pool.join(folder)).expect("a directory");
            for file in files {
                std::fs::write(pool.join(folder).join(file), "{}").expect("a file");
            }
        }
        assert_eq!(files_in(pool, PoolFile::Owner), [pool.join("node.json")]);
        let state = pool.join("volumes/b/state.json");
        assert_eq!(files_in(pool, PoolFile::State), [state]);
        let records = records_in(pool).into_iter();
        let handles: Vec<String> = records.map(|(handle, _)| handle).collect();
        assert_eq!(handles, ["a", "b", "g"]);
    }
}
