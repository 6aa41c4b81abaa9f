//! The volume modes of claims and PersistentVolumes.

/// The default volume mode.
pub(crate) const FILESYSTEM: &str = "Filesystem";
/// The volume mode of raw block volumes.
pub(crate) const BLOCK: &str = "Block";
