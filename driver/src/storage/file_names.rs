//! The names of files and directories in a pool.

pub(crate) use hostloop_report::pool_files::IMAGE;
use hostloop_report::pool_files::{SNAPSHOTS, VOLUMES};

use super::SnapshotId;

/// The lock file of the process that has the pool open.
pub const LOCK: &str = "lock";

/// The file that names the pool's node. Version 0.1.0 neither writes nor reads it.
pub(super) const OWNER: &str = "node.json";

/// The directory of entries under construction.
pub(super) const INCOMING: &str = "incoming";

/// The directory of deleted entries that are not freed yet.
pub(super) const TRASH: &str = "trash";

/// The file in an entry that says that it was in place when it had a second name, see
/// `recovery::sweep`.
pub(super) const MARK: &str = "in-place";

/// How the name of a deleted snapshot begins that keeps its image, under `trash/`. Builds that do
/// not know such names free the entry like any other there.
const KEPT: &str = "kept-";

/// The name under `trash/` of a deleted snapshot that keeps its image.
pub(super) fn kept_name(id: SnapshotId) -> String {
    format!("{KEPT}{id}")
}

/// The deleted snapshot that keeps its image under this name.
pub(super) fn kept_id(name: &str) -> Option<SnapshotId> {
    name.strip_prefix(KEPT)?.parse().ok()
}

/// The kind of an entry, which selects its parent directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Volumes,
    Snapshots,
    Groups,
}

impl EntryKind {
    /// All kinds of entries.
    pub(super) const ALL: [EntryKind; 3] =
        [EntryKind::Volumes, EntryKind::Snapshots, EntryKind::Groups];

    /// The name of the kind's directory in the pool.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EntryKind::Volumes => VOLUMES,
            EntryKind::Snapshots => SNAPSHOTS,
            EntryKind::Groups => "groups",
        }
    }
}
