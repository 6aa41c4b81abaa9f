//! The labels and annotations that say which node an object is of.

/// The scheduler sets this annotation to the node selected for a claim's volume.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// This label assigns a snapshot content to a node.
pub const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// This label assigns claims, volumes and attachments to a node. It only filters watches: the
/// selected node decides for a claim, the node affinity for a volume, and `spec.nodeName` for an
/// attachment.
pub const NODE_LABEL: &str = "hostloop.csi.dev/node";
