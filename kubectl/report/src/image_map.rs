//! The output of `hostloop status --extents`: where the blocks of images are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The blocks of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageMap {
    /// The ID of the volume or snapshot.
    pub id: String,
    /// The blocks; null without an image, or if they can't be read.
    pub extents: Option<Vec<ReportedRun>>,
    /// Why the blocks can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ReportedRun {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset on the filesystem, in bytes.
    pub physical: u64,
    /// True if another file has these blocks too.
    pub shared: bool,
}
