//! A mounted filesystem returns the space that its users free to the pool, but a thick volume keeps
//! its space.

use std::collections::BTreeSet;
use std::sync::Arc;

use hostloop_driver::kernel::{MountEntry, Mounts};
use hostloop_driver::storage::Provisioning;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::text;
use crate::oracle::capacity::provisioning;
use crate::oracle::objects::volume_of;
use crate::trace;

const FILESYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// The handles of volumes that users wanted to have thick when they were there already. The mount
/// changes before the record, and only the next staging may bring them together again.
#[derive(Default)]
pub(super) struct Discards {
    made_thick: BTreeSet<String>,
}

impl Discards {
    /// Notes what claims want.
    pub(super) fn note(&mut self, cluster: &Cluster, claims: &[Arc<Value>]) {
        for claim in claims {
            let attributes = text(claim, "/spec/volumeAttributesClassName");
            if provisioning(cluster, "", attributes) == Provisioning::Thick
                && let Some(volume) = volume_of(cluster, claim)
            {
                let handle = text(&volume, "/spec/csi/volumeHandle");
                self.made_thick.insert(handle.to_owned());
            }
        }
    }

    /// Checks the filesystems that are mounted where their volumes are staged.
    pub(super) fn check(&self, cluster: &Cluster) {
        for machine in &cluster.machines {
            let Ok(mounts) = machine.kernel().mounts() else {
                continue;
            };
            for volume in machine.contents().volumes {
                let handle = volume.id.to_string();
                let stage = volume.stage.as_ref();
                let Some(mount) = stage.and_then(|stage| mounts.at(&stage.path)) else {
                    continue;
                };
                let provisioning = volume.settings.provisioning;
                if !self.made_thick.contains(&handle) && is_wrong(provisioning, mount) {
                    trace::violation(format!(
                        "mounted with wrong options: {handle} on {}, which is {provisioning:?}, with \
                         {:?}",
                        machine.name(),
                        mount.super_options
                    ));
                }
            }
        }
    }
}

/// True if a volume is provisioned so, and its filesystem discards what it must not, or does not
/// discard what it must.
fn is_wrong(provisioning: Provisioning, mount: &MountEntry) -> bool {
    let is_filesystem = FILESYSTEMS.contains(&&*mount.fs_type);
    is_filesystem && mount.discards() != (provisioning == Provisioning::Thin)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::thin(Provisioning::Thin, "ext4", "rw,discard", false)]
    #[case::thin_btrfs(Provisioning::Thin, "btrfs", "rw,discard=async", false)]
    #[case::thin_that_keeps_its_space(Provisioning::Thin, "xfs", "rw", true)]
    #[case::thick(Provisioning::Thick, "ext4", "rw", false)]
    #[case::thick_btrfs(Provisioning::Thick, "btrfs", "rw,nodiscard", false)]
    #[case::thick_that_loses_its_space(Provisioning::Thick, "btrfs", "rw,discard=async", true)]
    #[case::no_filesystem(Provisioning::Thin, "tmpfs", "rw", false)]
    fn filesystems_that_discard(
        #[case] provisioning: Provisioning,
        #[case] fs: &str,
        #[case] options: &str,
        #[case] expected: bool,
    ) {
        let mount = MountEntry {
            id: 1,
            unique_id: None,
            parent: 0,
            device: (7, 1),
            root: "/".into(),
            mount_point: "/staging".into(),
            options: "rw".into(),
            fs_type: fs.into(),
            source: "/dev/loop1".into(),
            super_options: options.into(),
            loop_node: None,
            btrfs_loops: None,
        };
        assert_eq!(is_wrong(provisioning, &mount), expected);
    }
}
