//! The features that need kinds which an API server may lack.

use crate::cache::missing_kinds::{Feature, GROUPS, MODIFYING, SNAPSHOTS};
use crate::cli::{Args, LeaderTasks};
use crate::csi::Driver;
use crate::csi::driver::ControllerCapability;
use crate::roles::Role;

/// The features of this process that need optional kinds.
pub(super) fn needed(driver: &Driver, args: &Args) -> Vec<&'static Feature> {
    let roles = &args.controllers;
    let only_leads = args.election.leader_tasks == LeaderTasks::Only;
    let modifies = driver.can(ControllerCapability::ModifyVolume);
    let reads_classes = (roles.has(Role::Resizer) || roles.has(Role::Provisioner)) && !only_leads;
    // The controller of all drivers' snapshots does not run on nodes that never lead.
    let elsewhere = args.election.leader_tasks == LeaderTasks::Elsewhere;
    let of_all_drivers = roles.has(Role::SnapshotController) && !elsewhere;
    let of_driver = [
        Role::Snapshotter,
        Role::Provisioner,
        Role::Placement,
        Role::GoneNodes,
    ];
    let of_driver = of_driver.into_iter().any(|role| roles.has(role));
    [
        (modifies && reads_classes, &MODIFYING),
        (
            of_all_drivers || of_driver && driver.takes_snapshots(),
            &SNAPSHOTS,
        ),
        (
            of_all_drivers || of_driver && driver.takes_groups(),
            &GROUPS,
        ),
    ]
    .into_iter()
    .filter_map(|(needed, feature)| needed.then_some(feature))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::Csi;
    use crate::csi::driver::{GroupCapability, Service};
    use crate::testing;

    #[tokio::test]
    async fn what_a_process_needs() {
        use ControllerCapability::{CreateDeleteSnapshot, CreateDeleteVolume, ModifyVolume};
        let all = [CreateDeleteVolume, CreateDeleteSnapshot, ModifyVolume];
        let group = [GroupCapability::CreateDeleteGetVolumeGroupSnapshot];
        let services = [Service::ControllerService, Service::GroupControllerService];
        let full = Driver::with(Csi::none(), "d", &services, &all, &group);
        let plain = Driver::with(Csi::none(), "d", &services, &[CreateDeleteVolume], &[]);
        let snapshots = [CreateDeleteVolume, CreateDeleteSnapshot];
        let single = Driver::with(Csi::none(), "d", &services, &snapshots, &[]);
        let (every, classes) = (vec![&MODIFYING, &SNAPSHOTS, &GROUPS], vec![&MODIFYING]);
        let of_snapshots = vec![&SNAPSHOTS, &GROUPS];
        for (driver, flags, expected) in [
            (&full, &[][..], every.clone()),
            (&full, &["--leader-tasks=elsewhere"], every.clone()),
            (&full, &["--leader-tasks=only"], of_snapshots.clone()),
            (&full, &["--controllers=resizer"], classes),
            (&full, &["--controllers=snapshotter"], of_snapshots.clone()),
            (&full, &["--controllers=attacher,capacity"], vec![]),
            (&single, &[], vec![&SNAPSHOTS]),
            (&plain, &[], vec![]),
            (
                &plain,
                &["--controllers=*,snapshot-controller"],
                of_snapshots.clone(),
            ),
            (
                &plain,
                &[
                    "--controllers=*,snapshot-controller",
                    "--leader-tasks=elsewhere",
                ],
                vec![],
            ),
        ] {
            let args = testing::parse(flags);
            assert_eq!(needed(driver, &args), expected, "{flags:?}");
        }
    }
}
