//! What the orchestrator remembers: which paths it gave to the driver.
//!
//! It is written before a path is first used, so that whatever happens to this process, a later
//! `--cleanup` knows where to unpublish and unstage. Volumes and snapshots need not be in it: the
//! driver lists them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::tree::Tree;

/// The paths in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ledger {
    /// How the pool was configured (`--pool`).
    pub(super) pool: String,
    /// The root was made for the demo, and goes with it.
    pub(super) made_root: bool,
    /// Targets given to NodePublishVolume.
    pub(super) targets: Vec<Place>,
    /// Paths given to NodeStageVolume.
    pub(super) stagings: Vec<Place>,
}

/// A volume at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The volume's ID.
    pub(super) volume: String,
    /// Where.
    pub(super) path: PathBuf,
}

impl Ledger {
    /// Reads what an earlier run left.
    pub(super) fn load(tree: &Tree) -> Result<Ledger> {
        let path = tree.ledger();
        let text = std::fs::read(&path).map_err(Error::io("read", &path))?;
        serde_json::from_slice(&text).map_err(|e| Error::io("read", &path)(e.into()))
    }

    /// Writes it, whole or not at all.
    pub(super) fn save(&self, tree: &Tree) -> Result<()> {
        let path = tree.ledger();
        let new = path.with_extension("new");
        let text =
            serde_json::to_vec_pretty(self).map_err(|e| Error::io("write", &path)(e.into()))?;
        std::fs::write(&new, text).map_err(Error::io("write", &new))?;
        std::fs::rename(&new, &path).map_err(Error::io("rename", &path))
    }

    /// Notes a place.
    pub(super) fn put(places: &mut Vec<Place>, volume: &str, path: &Path) {
        let place = Place {
            volume: volume.to_owned(),
            path: path.to_path_buf(),
        };
        if !places.contains(&place) {
            places.push(place);
        }
    }

    /// Forgets a place.
    pub(super) fn take(places: &mut Vec<Place>, path: &Path) {
        places.retain(|place| place.path != path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new(dir.path());
        let mut ledger = Ledger {
            pool: "demo=/x".into(),
            ..Ledger::default()
        };
        for _ in 0..2 {
            Ledger::put(&mut ledger.targets, "vol", Path::new("/a"));
        }
        Ledger::put(&mut ledger.targets, "vol", Path::new("/b"));
        ledger.save(&tree).unwrap();
        assert_eq!(Ledger::load(&tree).unwrap(), ledger);
        Ledger::take(&mut ledger.targets, Path::new("/a"));
        assert_eq!(ledger.targets.len(), 1);
        ledger.save(&tree).unwrap();
        assert_eq!(Ledger::load(&tree).unwrap(), ledger);
    }
}
