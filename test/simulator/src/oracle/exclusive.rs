//! Nothing is used by two that must not: loop devices, nodes and pods.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hostloop_driver::kernel::{FileId, LoopDevices, LoopInfo, Mounts};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::machine::Machine;
use crate::model::view::text;
use crate::oracle::objects::is_for_one_pod;
use crate::trace;

/// Checks the kernels and the kubelets of all nodes. `volumes` are the PersistentVolumes.
pub(super) fn check(cluster: &Cluster, volumes: &[Arc<Value>]) {
    for machine in &cluster.machines {
        // A kernel of the simulator always answers.
        for wrong in wrong_devices(&machine.kernel().loops().unwrap_or_default()) {
            trace::violation(format!("used twice on {}: {wrong}", machine.name()));
        }
    }
    let staged = cluster.machines.iter().map(|machine| {
        let staged = machine.kubelet.staged();
        (machine.name(), staged)
    });
    for wrong in staged_twice(staged) {
        trace::violation(format!("used twice: {wrong}"));
    }
    for volume in volumes.iter().filter(|volume| is_for_one_pod(volume)) {
        let handle = text(volume, "/spec/csi/volumeHandle");
        let pods = pods_with(cluster, handle);
        if pods > 1 {
            trace::violation(format!(
                "used twice: {pods} pods have the ReadWriteOncePod volume {handle}"
            ));
        }
    }
}

/// The number of pods that have a volume.
fn pods_with(cluster: &Cluster, handle: &str) -> usize {
    let targets = cluster
        .machines
        .iter()
        .map(|machine| (machine, machine.kubelet.targets(handle)));
    let targets: Vec<(&Machine, Vec<PathBuf>)> = targets.collect();
    let known: usize = targets.iter().map(|(_, targets)| targets.len()).sum();
    if known < 2 {
        return known;
    }
    // Kubelet may not know that a target was unmounted.
    let mounted = targets
        .iter()
        .map(|(machine, targets)| mounted(machine, targets));
    mounted.sum()
}

/// The number of these paths at which something is mounted.
fn mounted(machine: &Machine, paths: &[PathBuf]) -> usize {
    let Ok(mounts) = machine.kernel().mounts() else {
        return 0;
    };
    let mounted = paths.iter().filter(|path| mounts.at(path).is_some());
    mounted.count()
}

/// What must not be among the loop devices of a node. A read-only device over another device serves
/// a read-only publication.
fn wrong_devices(devices: &[LoopInfo]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut writers: BTreeMap<FileId, u32> = BTreeMap::new();
    for device in devices.iter().filter(|device| device.backing_rdev == 0) {
        let (minor, path) = (device.minor, device.backing_path.as_str());
        if is_deleted(path) {
            wrong.push(format!("loop{minor} has a deleted image, {path}"));
        }
        if device.read_only {
            continue;
        }
        if path.contains("/snapshots/") {
            wrong.push(format!("loop{minor} can write to a snapshot, {path}"));
        }
        if let Some(other) = device.backing.and_then(|file| writers.insert(file, minor)) {
            wrong.push(format!("loop{other} and loop{minor} can write to {path}"));
        }
    }
    wrong
}

/// True for the path of an image that the driver has deleted.
fn is_deleted(path: &str) -> bool {
    path.ends_with(" (deleted)") || path.contains("/pool/trash/")
}

/// The handles of volumes that are staged on two nodes.
fn staged_twice(
    staged: impl Iterator<Item = (&'static str, Vec<String>)>,
) -> impl Iterator<Item = String> {
    let mut nodes: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for (node, handles) in staged {
        for handle in handles {
            nodes.entry(handle).or_default().push(node);
        }
    }
    let twice = nodes.into_iter().filter(|(_, nodes)| nodes.len() > 1);
    twice.map(|(handle, nodes)| format!("{handle} is staged on {}", nodes.join(" and ")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn device(minor: u32, image: &str, file: u64) -> LoopInfo {
        LoopInfo {
            minor,
            backing: Some(FileId { dev: 1, ino: file }),
            backing_path: format!("/dev/shm/n1/pool/{image}"),
            ..LoopInfo::default()
        }
    }

    fn read_only(device: LoopInfo) -> LoopInfo {
        LoopInfo {
            read_only: true,
            ..device
        }
    }

    fn above(device: LoopInfo) -> LoopInfo {
        LoopInfo {
            backing_rdev: 1792,
            ..read_only(device)
        }
    }

    #[rstest]
    #[case::none(vec![], 0)]
    #[case::one_each(vec![device(1, "volumes/a/image", 1), device(2, "volumes/b/image", 2)], 0)]
    #[case::read_only_above(
        vec![device(1, "volumes/a/image", 1), above(device(2, "volumes/a/image", 3))], 0)]
    #[case::two_writers(
        vec![device(1, "volumes/a/image", 1), device(2, "volumes/a/image", 1)], 1)]
    #[case::one_writer(
        vec![device(1, "volumes/a/image", 1), read_only(device(2, "volumes/a/image", 1))], 0)]
    #[case::snapshot(vec![device(1, "snapshots/a/image", 1)], 1)]
    #[case::snapshot_to_read(vec![read_only(device(1, "snapshots/a/image", 1))], 0)]
    #[case::in_trash(vec![device(1, "trash/a/image", 1)], 1)]
    #[case::deleted(vec![read_only(device(1, "volumes/a/image (deleted)", 1))], 1)]
    fn devices_that_must_not_be_together(#[case] devices: Vec<LoopInfo>, #[case] expected: usize) {
        let wrong = wrong_devices(&devices);
        assert_eq!(wrong.len(), expected, "{wrong:?}");
    }

    #[test]
    fn a_volume_is_on_one_node() {
        let all = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let staged = [("n1", all(&["a", "b"])), ("n2", all(&["c", "b"]))];
        let wrong: Vec<String> = staged_twice(staged.into_iter()).collect();
        assert_eq!(wrong, ["b is staged on n1 and n2"]);
    }
}
