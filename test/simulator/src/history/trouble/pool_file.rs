//! The files of a pool that can be damaged beside its records.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A file of a pool, other than a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum PoolFile {
    /// The one that names the node that has the pool.
    Owner,
    /// What the running kernel has of a volume: the one with a number, in the order of their paths.
    State,
}

impl PoolFile {
    pub(crate) const ALL: [PoolFile; 2] = [PoolFile::Owner, PoolFile::State];

    /// The name of the file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            PoolFile::Owner => "node.json",
            PoolFile::State => "state.json",
        }
    }
}

impl fmt::Display for PoolFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
