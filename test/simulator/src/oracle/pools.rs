//! Whether drivers have their pools open, and nothing unfinished in them.

use std::collections::BTreeSet;
use std::path::Path;

use crate::cluster::Cluster;
use crate::trace;

/// Where a pool has entries that are being made, or that are deleted but not freed yet.
const UNFINISHED: [&str; 2] = ["incoming", "trash"];

/// Checks that no driver has a pool open while its `node.json` is damaged.
pub(super) fn are_guarded(cluster: &Cluster) {
    let mut damaged = cluster.machines.iter().filter(|one| one.lacks_owner());
    let open = damaged.find(|one| one.pools().is_some() && one.why_pool_is_missing().is_none());
    if let Some(machine) = open {
        let name = machine.name();
        trace::violation(format!(
            "a pool is open: that of {name}, with a damaged node.json"
        ));
    }
}

/// Checks that each running driver has found its pool again.
pub(super) fn are_open(cluster: &Cluster) {
    for machine in &cluster.machines {
        if let Some(why) = machine.why_pool_is_missing() {
            let name = machine.name();
            trace::violation(format!("a pool is still missing: that of {name}: {why}"));
        }
    }
}

/// Checks that each driver with an open pool knows what its disk has, and nothing else. Other rules
/// ask the driver what there is.
pub(super) fn are_known(cluster: &Cluster) {
    let machines = cluster.machines.iter();
    let open = machines.filter(|one| one.pools().is_some() && one.why_pool_is_missing().is_none());
    for machine in open {
        for wrong in differences(&machine.handles(), &machine.handles_on_disk()) {
            trace::violation(format!("a pool suffers: on {}, {wrong}", machine.name()));
        }
    }
}

/// What is wrong with a driver that knows these handles, if its disk has those.
fn differences(known: &BTreeSet<String>, on_disk: &BTreeSet<String>) -> Vec<String> {
    let lost = known
        .difference(on_disk)
        .map(|handle| format!("the driver knows {handle}, which its disk does not have"));
    let forgotten = on_disk
        .difference(known)
        .map(|handle| format!("the disk has {handle}, which its driver does not know"));
    lost.chain(forgotten).collect()
}

/// Checks that drivers have finished, or cleaned up, what they once began.
pub(super) fn are_tidy(cluster: &Cluster) {
    for machine in cluster.machines.iter().filter(|one| one.pools().is_some()) {
        for entry in unfinished(&machine.pool()) {
            let name = machine.name();
            trace::violation(format!("left unfinished: {entry} in the pool of {name}"));
        }
    }
}

/// What is unfinished in the pool at this path, in one order for all runs.
fn unfinished(pool: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for folder in UNFINISHED {
        let entries = std::fs::read_dir(pool.join(folder)).into_iter();
        for entry in entries.flatten().flatten() {
            found.push(format!("{folder}/{}", entry.file_name().to_string_lossy()));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::departures::tests::set;

    #[test]
    fn a_driver_knows_what_its_disk_has() {
        for (known, on_disk, wrong) in [
            (set(&["a", "b"]), set(&["a", "b"]), 0),
            (set(&["a", "b"]), set(&["a"]), 1),
            (set(&["a"]), set(&["a", "b"]), 1),
            (set(&["a"]), set(&["b"]), 2),
        ] {
            let found = differences(&known, &on_disk);
            assert_eq!(found.len(), wrong, "{found:?}");
        }
    }

    #[test]
    fn only_entries_on_their_way_are_unfinished() {
        let dir = tempfile::tempdir().expect("a directory");
        for entry in ["volumes/vol-1", "incoming", "trash/snap-2", "trash/vol-3"] {
            std::fs::create_dir_all(dir.path().join(entry)).expect("a directory");
        }
        let expected = ["trash/snap-2", "trash/vol-3"];
        assert_eq!(unfinished(dir.path()), expected);
        let missing = dir.path().join("missing");
        assert!(unfinished(&missing).is_empty());
    }
}
