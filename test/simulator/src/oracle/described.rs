//! A PersistentVolume says which filesystem its volume has. Kubelet asks for that one, and a driver
//! mounts no other.

use std::collections::BTreeMap;
use std::sync::Arc;

use hostloop_driver::kernel::FsType;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{name, text};
use crate::trace;

/// What stands for the filesystem of a raw block volume.
const RAW: &str = "none";

/// Checks all PersistentVolumes with a volume that can be read.
pub(super) fn are_right(cluster: &Cluster, volumes: &[Arc<Value>]) {
    let mut filesystems: BTreeMap<String, &'static str> = BTreeMap::new();
    for machine in &cluster.machines {
        for volume in machine.contents().volumes {
            let fs = volume
                .capabilities
                .first()
                .map(|capability| capability.access.fs().map_or(RAW, FsType::as_str));
            filesystems.extend(fs.map(|fs| (volume.id.to_string(), fs)));
        }
    }
    for volume in volumes {
        let handle = text(volume, "/spec/csi/volumeHandle");
        let (said, has) = (said_of(volume), filesystems.get(handle));
        if let (Some(said), Some(has)) = (said, has)
            && said != *has
        {
            trace::violation(format!(
                "described wrongly: {} says that {handle} has the filesystem {said}, and it has {has}",
                name(volume)
            ));
        }
    }
}

/// The filesystem that a PersistentVolume names, if it does.
fn said_of(volume: &Value) -> Option<&str> {
    if text(volume, "/spec/volumeMode") == "Block" {
        return Some(RAW);
    }
    let fs = text(volume, "/spec/csi/fsType");
    (!fs.is_empty()).then_some(fs)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::filesystem(json!({"volumeMode": "Filesystem", "csi": {"fsType": "xfs"}}), Some("xfs"))]
    #[case::old(json!({"csi": {"fsType": "ext4"}}), Some("ext4"))]
    #[case::default(json!({"volumeMode": "Filesystem", "csi": {}}), None)]
    #[case::block(json!({"volumeMode": "Block", "csi": {"fsType": "ext4"}}), Some(RAW))]
    fn what_volumes_say(#[case] spec: Value, #[case] expected: Option<&str>) {
        assert_eq!(said_of(&json!({"spec": spec})), expected);
    }
}
