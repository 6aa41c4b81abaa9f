//! What drivers say of unreadable records, and what becomes of these.

use std::collections::BTreeSet;

use hostloop_driver::diagnose::Problem;

use crate::cluster::Cluster;
use crate::oracle::Oracle;
use crate::trace;

/// Checks that each driver names the unreadable records of its pool, and no others.
pub(super) fn are_named(cluster: &Cluster) {
    for machine in &cluster.machines {
        let Some(pools) = machine.pools() else {
            continue;
        };
        let unreadable: BTreeSet<String> = machine.unreadable().map(str::to_owned).collect();
        let noted = pools.noted_problems().into_iter();
        let noted = noted.filter(|one| matches!(one.problem, Problem::RecordUnusable(_)));
        let named: BTreeSet<String> = noted.map(|one| one.about.to_string()).collect();
        for wrong in differences(&unreadable, &named) {
            trace::violation(wrong);
        }
    }
}

/// What is wrong with the handles that a driver names, if these have an unreadable record.
fn differences(unreadable: &BTreeSet<String>, named: &BTreeSet<String>) -> Vec<String> {
    let silent = unreadable.difference(named).map(|handle| {
        format!("not named: the driver does not say that the record of {handle} is unreadable")
    });
    let others = named.difference(unreadable).map(|handle| {
        format!("a record suffers: that of {handle} is unreadable, and the world left it alone")
    });
    silent.chain(others).collect()
}

/// Checks after everything was deleted that this includes what has an unreadable record, unless
/// it was to be kept. What never had an object can't be deleted by a user.
pub(super) fn unreadable_are_deleted(oracle: &Oracle, cluster: &Cluster) {
    for handle in cluster.unreadable() {
        let is_unwanted = oracle.lives.keeps(&handle) == Some(false)
            || oracle.snapshots.is_kept(&handle) == Some(false)
            || oracle.groups.is_kept(&handle) == Some(false);
        let is_excused = oracle.has_lost_object(&handle) || oracle.adopted.may_stay(&handle);
        if is_unwanted && !is_excused {
            trace::violation(format!(
                "left in the pool: {handle} with an unreadable record"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::departures::tests::set;

    #[test]
    fn each_unreadable_record_is_named_and_no_other() {
        for (unreadable, named, wrong) in [
            (set(&[]), set(&[]), 0),
            (set(&["a", "b"]), set(&["a", "b"]), 0),
            (set(&["a", "b"]), set(&["b"]), 1),
            (set(&["a"]), set(&["b"]), 2),
        ] {
            let found = differences(&unreadable, &named);
            assert_eq!(found.len(), wrong, "{found:?}");
        }
    }
}
