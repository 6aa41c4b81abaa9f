//! The names of files in a pool that other programs than the driver read.

/// The directory of volumes.
pub const VOLUMES: &str = "volumes";
/// The directory of snapshots.
pub const SNAPSHOTS: &str = "snapshots";
/// The name of the image file in the directory of a volume or snapshot.
pub const IMAGE: &str = "image";
/// The name of the record in the directory of a volume.
pub const VOLUME_RECORD: &str = "volume.json";
/// The name of the record in the directory of a snapshot.
pub const SNAPSHOT_RECORD: &str = "snapshot.json";
