//! The names of files in a pool that reports lead to.

/// The directory of volumes.
pub const VOLUMES: &str = "volumes";
/// The name of the image file in the directory of a volume or snapshot.
pub const IMAGE: &str = "image";
