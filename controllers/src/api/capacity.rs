//! The labels of CSIStorageCapacity objects.

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::ResourceExt;

use super::scope::{MAX_LABEL, hash};

/// The label that names the driver.
pub(crate) const DRIVER: &str = "csi.storage.k8s.io/drivername";
/// The label that names the process which manages an object.
pub(crate) const MANAGED_BY: &str = "csi.storage.k8s.io/managed-by";
/// The value of that label in upstream's external-provisioner, known to other tools.
const MANAGER: &str = "external-provisioner";

/// The `managed-by` label of a node's objects. `None` is one process for the whole cluster. A value
/// that is too long for a label is shortened as upstream does: the prefix is cut, and its hash
/// inserted. So either can take over the other's objects. If the node name alone is too long, a
/// hash of the whole value replaces it.
pub(crate) fn managed_by(node: Option<&str>) -> String {
    let Some(node) = node else {
        return MANAGER.to_owned();
    };
    let whole = format!("{MANAGER}-{node}");
    if whole.len() <= MAX_LABEL {
        return whole;
    }
    let left = MAX_LABEL.saturating_sub(node.len() + "-12345678-".len());
    match MANAGER.get(..left) {
        Some(cut) if left > 0 => format!("{cut}-{}-{node}", hash(MANAGER)),
        _ => format!("{MANAGER}-{}", hash(&whole)),
    }
}

/// The `managed-by` label of an object.
pub(crate) fn keeper_of(object: &CSIStorageCapacity) -> Option<&str> {
    object.labels().get(MANAGED_BY).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_fit() {
        assert_eq!(managed_by(None), "external-provisioner");
        let node = |length: usize| format!("node{}", "a".repeat(length - 4));
        for (length, expected) in [
            (6, "external-provisioner-nodeaa".to_owned()),
            (42, format!("external-provisioner-{}", node(42))),
            (43, format!("external-p-53f40b57-{}", node(43))),
            (52, format!("e-53f40b57-{}", node(52))),
            (53, "external-provisioner-a3607ff1".to_owned()),
            (67, "external-provisioner-df38e37f".to_owned()),
        ] {
            let made = managed_by(Some(&node(length)));
            assert_eq!(made, expected);
            assert!(made.len() <= MAX_LABEL);
        }
    }
}
