//! What `hostloop status` reports of volumes that all nodes of a kernel may use.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::path::PathBuf;

use hostloop_report::status::{ForeignUse, KernelReport, VolumeUser};

use crate::inspect::inventory::Survey;
use crate::kernel::Kernel;
use crate::reach::kernels::Kernels;
use crate::reach::markers::{self, Marker};
use crate::reach::pins::{self, Pin};
use crate::storage::{PoolId, VolumeId, VolumeRecord};

/// The pins of all nodes of the kernel.
pub(super) struct SharedUse {
    pins: Vec<Pin>,
    /// The nodes with a pin that lives, by the device that it pins.
    live: BTreeMap<u32, BTreeSet<String>>,
    /// The markers of this node.
    own: Vec<(u32, Marker)>,
}

impl SharedUse {
    pub(super) fn of(survey: &Survey) -> SharedUse {
        let pins = pins::of(survey.kernel.loops.iter());
        let markers = markers::all(survey.kernel.loops.iter());
        let live = pins::live(&pins, &markers).into_iter();
        let live = live.map(|(over, nodes)| (over, nodes.into_iter().map(str::to_owned).collect()));
        SharedUse {
            live: live.collect(),
            pins,
            own: markers::own(survey.kernel.loops.iter(), &survey.kernel.mounts),
        }
    }

    /// The nodes that use a volume with these devices, or to which it is published.
    pub(super) fn users(&self, record: &VolumeRecord, devices: &[u32]) -> Vec<VolumeUser> {
        let pinning: BTreeSet<&String> = devices
            .iter()
            .filter_map(|minor| self.live.get(minor))
            .flatten()
            .collect();
        let nodes: BTreeSet<&String> = record
            .publications
            .keys()
            .chain(pinning.iter().copied())
            .collect();
        nodes
            .into_iter()
            .map(|node| VolumeUser {
                node: node.clone(),
                published: record.publications.contains_key(node),
                pins: pinning.contains(node),
            })
            .collect()
    }

    /// What this node uses of volumes in pools that it does not have.
    pub(super) fn foreign(&self, survey: &Survey) -> Vec<ForeignUse> {
        let own: BTreeSet<PoolId> = survey.contents().map(|(_, contents)| contents.id).collect();
        let used = survey.kernel.loops.iter().filter_map(|device| {
            let id: VolumeId = device.directory()?.parse().ok()?;
            if own.contains(&id.pool()) {
                return None;
            }
            // A read-only target of a raw block volume has a pin.
            let bound = self.pins.iter().filter(|pin| pin.over == device.minor);
            let minors = iter::once(device.minor).chain(bound.map(|pin| pin.minor));
            let mounts = minors.flat_map(|minor| survey.kernel.mounts_of(minor));
            let mounts: Vec<PathBuf> = mounts.map(|m| m.mount_point.to_path_buf()).collect();
            let pins = self.pins(device.minor);
            (pins || !mounts.is_empty()).then(|| ForeignUse {
                id: id.to_string(),
                minor: device.minor,
                mounts,
                pins,
            })
        });
        used.collect()
    }

    /// True if this node pins the device.
    fn pins(&self, minor: u32) -> bool {
        let mut over = self.pins.iter().filter(|pin| pin.over == minor);
        over.any(|pin| self.own.iter().any(|(_, own)| own.nonce == pin.nonce))
    }
}

/// The kernel that this node shares. `None` as long as it has no marker: it has proved nothing then.
pub(super) fn kernel_of(
    survey: &Survey,
    kernels: &Kernels,
    kernel: &dyn Kernel,
) -> Option<KernelReport> {
    let own = markers::own(survey.kernel.loops.iter(), &survey.kernel.mounts);
    let (minor, own) = own.into_iter().next()?;
    let listed = kernels.of(&own.node);
    let name = listed
        .as_ref()
        .map_or(own.kernel, |listed| listed.name.clone());
    let seen = markers::seen(survey.kernel.loops.iter(), &name);
    let seen: BTreeSet<String> = seen.into_iter().map(|marker| marker.node).collect();
    Some(KernelReport {
        name,
        listed: listed.map_or_else(Vec::new, |listed| listed.nodes.into_iter().collect()),
        seen: seen.into_iter().collect(),
        shows_diskseq: matches!(kernel.loop_diskseq(minor), Ok(Some(_))),
    })
}

#[cfg(test)]
mod tests {
    use hostloop_fake_kernel::Model;

    use super::*;
    use crate::diagnose::KernelState;
    use crate::kernel::{LoopInfo, MountTable};
    use crate::reach::testing::{device, marker, marker_device, pin_device};
    use crate::storage::Publication;
    use crate::testkit::{mounted, record_of};

    /// Node n2, which uses volume `id` of n1. The container of n3 is gone.
    fn survey(id: VolumeId) -> Survey {
        let [n1, n2, n3] = [('1', "n1"), ('2', "n2"), ('3', "n3")].map(|(d, n)| marker(n, d));
        let loops = vec![
            marker_device(1, &n1),
            marker_device(2, &n2),
            device(7, format!("/pool/volumes/{id}/image")),
            pin_device(8, 7, &n1),
            pin_device(9, 7, &n2),
            pin_device(10, 7, &n3),
            LoopInfo {
                offset: 0,
                ..pin_device(11, 7, &n2)
            },
        ];
        let mounts = "\
30 1 0:5 / /dev rw - devtmpfs devtmpfs rw
40 1 7:2 / /state/kernel/alive ro - ext4 /dev/loop2 ro
41 1 7:7 / /stage/a rw - ext4 /dev/loop7 rw
42 1 0:5 /loop11 /pod/raw ro - devtmpfs devtmpfs rw
";
        Survey {
            kernel: KernelState {
                loops: loops.into(),
                mounts: MountTable::parse(mounts.as_bytes()).unwrap(),
            },
            ..Survey::default()
        }
    }

    #[test]
    fn all_nodes_that_use_a_volume_are_named() {
        let mut record = record_of(PoolId::generate(), "v");
        for node in ["n2", "n4"] {
            let publication = Publication {
                capability: mounted(),
                readonly: false,
            };
            record.publications.insert(node.to_owned(), publication);
        }
        let shared = SharedUse::of(&survey(record.id));
        let user = |node: &str, published, pins| VolumeUser {
            node: node.to_owned(),
            published,
            pins,
        };
        let expected = [
            user("n1", false, true),
            user("n2", true, true),
            user("n4", true, false),
        ];
        assert_eq!(shared.users(&record, &[7]), expected);
        assert_eq!(shared.users(&record, &[]).len(), 2, "not attached");
    }

    #[test]
    fn what_a_node_uses_of_others_is_reported() {
        let id = VolumeId::generate(PoolId::generate());
        let survey = survey(id);
        let expected = ForeignUse {
            id: id.to_string(),
            minor: 7,
            mounts: vec!["/stage/a".into(), "/pod/raw".into()],
            pins: true,
        };
        assert_eq!(SharedUse::of(&survey).foreign(&survey), [expected]);
    }

    #[test]
    fn the_kernel_is_reported_with_the_nodes_that_prove_it() {
        let kernels = tempfile::tempdir().unwrap();
        std::fs::write(kernels.path().join("kernel"), "n1 n2 n5").unwrap();
        let kernels = Kernels::at(Some(kernels.path().to_owned()));
        let mut survey = survey(VolumeId::generate(PoolId::generate()));
        let model = Model::new();
        let report = kernel_of(&survey, &kernels, &model).unwrap();
        assert_eq!(report.name, "kernel");
        assert_eq!(report.listed, ["n1", "n2", "n5"]);
        assert_eq!(report.seen, ["n1", "n2"]);
        assert!(!report.shows_diskseq, "the model has no such device");
        survey.kernel.mounts = MountTable::default();
        assert_eq!(kernel_of(&survey, &kernels, &model), None);
    }
}
