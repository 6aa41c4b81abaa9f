//! A group between its beginning and its end.

use crate::storage::layout::Left;
use crate::storage::{GroupId, SnapshotId};

/// A group that was never finished or is partly deleted. Its record confirms, besides the records
/// of its members, that the members must be freed.
#[derive(Debug)]
pub(in crate::storage) struct Unfinished {
    pub(in crate::storage) group: GroupId,
    /// The directory of the record.
    pub(in crate::storage) left: Left,
    /// The members that may be in place, now or after a power cut.
    pub(in crate::storage) waiting: Vec<SnapshotId>,
}
