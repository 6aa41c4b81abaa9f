//! A group between its beginning and its end.

use crate::storage::GroupRecord;
use crate::storage::layout::Left;

/// A group that was never finished or is partly deleted. Its record confirms, besides the records
/// of its members, that the members must be freed.
#[derive(Debug)]
pub(in crate::storage) struct Unfinished {
    /// The directory of the record.
    pub(super) left: Left,
    pub(super) group: GroupRecord,
}
