//! The labels and annotations that say which node an object is of.

/// The scheduler sets this annotation to the node selected for a claim's volume.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// This label assigns a snapshot content to a node.
pub const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// This label assigns claims, volumes and attachments to a node. It only filters watches: the
/// selected node decides for a claim, the node affinity for a volume, and `spec.nodeName` for an
/// attachment. Of a volume that all nodes of a kernel can use, the pool in the handle decides, also for
/// its attachments.
pub const NODE_LABEL: &str = "hostloop.csi.dev/node";

/// The maximum length of a label value in bytes.
pub const MAX_LABEL: usize = 63;

/// Returns the label value for a node name. An overlong name is cut and gets a hash of the whole.
pub fn node_label(name: &str) -> String {
    if name.len() <= MAX_LABEL {
        return name.to_owned();
    }
    let hash = hash(name);
    let mut end = MAX_LABEL - 9;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{hash}", &name[..end])
}

/// Returns the 32-bit FNV-1a hash of a text as eight hexadecimal digits.
pub fn hash(text: &str) -> String {
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_fit() {
        assert_eq!(node_label("n1"), "n1");
        let long = node_label(&"n".repeat(100));
        assert_eq!(long.len(), MAX_LABEL);
        assert_ne!(long, node_label(&"n".repeat(101)));
    }
}
