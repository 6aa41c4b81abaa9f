//! Volumes that all nodes of a kernel can use.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::constants::{REACH, REACH_KERNEL};

/// True if all nodes of a kernel can use the volume, and the node that has it serves all of them.
pub fn is_shared(volume: &PersistentVolume) -> bool {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let attributes = csi.and_then(|csi| csi.volume_attributes.as_ref());
    attributes.is_some_and(reaches_kernel)
}

/// True for the attributes of such a volume, and for the parameters of its class.
pub fn reaches_kernel(words: &BTreeMap<String, String>) -> bool {
    words.get(REACH).is_some_and(|reach| reach == REACH_KERNEL)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shared_volumes() {
        for (attributes, expected) in [
            (json!({"reach": "kernel"}), true),
            (json!({"reach": "kernel", "other": "x"}), true),
            (json!({"reach": "node"}), false),
            (json!({"reach": ""}), false),
            (json!({"other": "kernel"}), false),
            (json!(null), false),
        ] {
            let volume = json!({"spec": {"csi": {
                "driver": "d", "volumeHandle": "h", "volumeAttributes": attributes}}});
            let volume = serde_json::from_value(volume).expect("a volume");
            assert_eq!(is_shared(&volume), expected, "{attributes}");
        }
        assert!(!is_shared(&PersistentVolume::default()));
    }
}
