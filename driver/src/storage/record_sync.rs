//! What is known of a volume's record on disk.

/// Whether a volume's record on disk is that of the index, also after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordSync {
    /// It is, also after a power cut.
    Synced,
    /// A change of this process may be on disk or not, or may not survive a power cut.
    Unsynced,
    /// It lacks a change that could not be written, and is otherwise as safe as it was. It has the
    /// same publications.
    Behind,
}
