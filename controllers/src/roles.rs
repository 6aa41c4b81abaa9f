//! The controllers that a process can run, and the selection by `--controllers`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A controller that can be selected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Creates and deletes volumes for claims.
    Provisioner,
    /// Attaches volumes to nodes.
    Attacher,
    /// Expands and modifies volumes.
    Resizer,
    /// Takes snapshots for snapshot contents.
    Snapshotter,
    /// Publishes free capacity for the scheduler.
    Capacity,
    /// Reports unhealthy volumes by events, and in the status of their claims.
    Health,
    /// Registers the driver with kubelet.
    Registrar,
    /// Serves the liveness endpoint for kubelet.
    Liveness,
    /// Selects nodes for claims, if every node has its own controllers.
    Placement,
    /// Cleans up after deleted nodes.
    GoneNodes,
    /// Finds volumes without a PV, and stale publications.
    Orphans,
    /// Creates snapshot contents for snapshots: the part for the cluster, not for one driver.
    SnapshotController,
    /// Serves the changed blocks of snapshots to backup tools.
    SnapshotMetadata,
}

impl Role {
    /// All controllers.
    pub const ALL: [Role; 13] = [
        Role::Provisioner,
        Role::Attacher,
        Role::Resizer,
        Role::Snapshotter,
        Role::Capacity,
        Role::Health,
        Role::Registrar,
        Role::Liveness,
        Role::Placement,
        Role::GoneNodes,
        Role::Orphans,
        Role::SnapshotController,
        Role::SnapshotMetadata,
    ];

    /// The controller's name in `--controllers`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Provisioner => "provisioner",
            Role::Attacher => "attacher",
            Role::Resizer => "resizer",
            Role::Snapshotter => "snapshotter",
            Role::Capacity => "capacity",
            Role::Health => "health",
            Role::Registrar => "registrar",
            Role::Liveness => "liveness",
            Role::Placement => "placement",
            Role::GoneNodes => "gone-nodes",
            Role::Orphans => "orphans",
            Role::SnapshotController => "snapshot-controller",
            Role::SnapshotMetadata => "snapshot-metadata",
        }
    }

    /// The controller of this name, or the one in place of the sidecar of this name.
    pub fn named(name: &str) -> Option<Role> {
        let own = Role::ALL.into_iter().find(|role| role.name() == name);
        own.or_else(|| {
            let (_, role) = SIDECARS.iter().find(|(sidecar, _)| *sidecar == name)?;
            Some(*role)
        })
    }
}

/// The names of Kubernetes' sidecars, of their repositories and containers, and the controller that
/// runs in place of each.
pub const SIDECARS: [(&str, Role); 18] = [
    ("external-provisioner", Role::Provisioner),
    ("csi-provisioner", Role::Provisioner),
    ("external-attacher", Role::Attacher),
    ("csi-attacher", Role::Attacher),
    ("external-resizer", Role::Resizer),
    ("csi-resizer", Role::Resizer),
    ("external-snapshotter", Role::Snapshotter),
    ("csi-snapshotter", Role::Snapshotter),
    ("health-monitor", Role::Health),
    ("external-health-monitor", Role::Health),
    ("external-health-monitor-controller", Role::Health),
    ("csi-external-health-monitor-controller", Role::Health),
    ("node-driver-registrar", Role::Registrar),
    ("csi-node-driver-registrar", Role::Registrar),
    ("livenessprobe", Role::Liveness),
    ("liveness-probe", Role::Liveness),
    ("csi-livenessprobe", Role::Liveness),
    ("csi-snapshot-controller", Role::SnapshotController),
];

/// Sidecars that nothing here replaces.
pub const OTHER_SIDECARS: [&str; 3] = [
    "volume-data-source-validator",
    "external-snapshot-metadata",
    "csi-snapshot-metadata",
];

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The selected controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles(BTreeSet<Role>);

impl Roles {
    /// True if this controller is selected.
    pub fn has(&self, role: Role) -> bool {
        self.0.contains(&role)
    }
}

/// The controllers that `*` selects: each cluster has one snapshot-controller for all drivers, and
/// changed blocks are served only on request.
fn usual() -> impl Iterator<Item = Role> {
    Role::ALL
        .into_iter()
        .filter(|role| !matches!(role, Role::SnapshotController | Role::SnapshotMetadata))
}

/// An invalid value of `--controllers`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolesError {
    #[error("there is no controller {0:?}; there are {names}", names = names())]
    Unknown(String),
    #[error("no controller replaces {0:?}: run it in a container of its own")]
    Other(String),
    #[error("the list selects no controller")]
    Nothing,
}

fn names() -> String {
    Role::ALL.map(Role::name).join(", ")
}

fn unknown(name: &str) -> RolesError {
    if OTHER_SIDECARS.contains(&name) {
        RolesError::Other(name.to_owned())
    } else {
        RolesError::Unknown(name.to_owned())
    }
}

impl FromStr for Roles {
    type Err = RolesError;

    /// Parses a list: names, also those of sidecars, `*` for all except snapshot-controller and
    /// snapshot-metadata, and `-name` to exclude one. A list that only excludes starts from `*`.
    fn from_str(list: &str) -> Result<Self, RolesError> {
        let words: Vec<&str> = list
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect();
        let mut picked = BTreeSet::new();
        if words.iter().all(|word| word.starts_with('-')) {
            picked.extend(usual());
        }
        let mut dropped = BTreeSet::new();
        for word in &words {
            let (name, drop) = match word.strip_prefix('-') {
                Some(name) => (name, true),
                None => (*word, false),
            };
            if name == "*" && !drop {
                picked.extend(usual());
                continue;
            }
            let role = Role::named(name).ok_or_else(|| unknown(name))?;
            if drop { &mut dropped } else { &mut picked }.insert(role);
        }
        let left: BTreeSet<Role> = picked.difference(&dropped).copied().collect();
        if left.is_empty() {
            Err(RolesError::Nothing)
        } else {
            Ok(Roles(left))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let usual = "provisioner attacher resizer snapshotter capacity health registrar liveness \
                     placement gone-nodes orphans";
        for (list, picked) in [
            ("*", usual.to_owned()),
            ("", usual.to_owned()),
            (
                "*,snapshot-controller",
                format!("{usual} snapshot-controller"),
            ),
            ("*,snapshot-metadata", format!("{usual} snapshot-metadata")),
            ("provisioner, attacher", "provisioner attacher".to_owned()),
            (
                "-attacher,-health",
                usual.replace("attacher ", "").replace("health ", ""),
            ),
            ("*,-liveness", usual.replace(" liveness", "")),
            ("-provisioner,provisioner,resizer", "resizer".to_owned()),
            (
                "node-driver-registrar,livenessprobe,external-provisioner,csi-attacher",
                "provisioner attacher registrar liveness".to_owned(),
            ),
            ("*,-health-monitor", usual.replace(" health", "")),
        ] {
            let roles: Roles = list.parse().expect(list);
            let names: Vec<_> = roles.0.iter().map(|role| role.name()).collect();
            assert_eq!(names.join(" "), picked, "{list:?}");
        }
        for (list, error) in [
            ("attach", RolesError::Unknown("attach".to_owned())),
            ("-*", RolesError::Unknown("*".to_owned())),
            ("health,-health", RolesError::Nothing),
            ("health,-health-monitor", RolesError::Nothing),
            (
                "volume-data-source-validator",
                RolesError::Other("volume-data-source-validator".to_owned()),
            ),
        ] {
            assert_eq!(list.parse::<Roles>(), Err(error), "{list:?}");
        }
    }

    #[test]
    fn no_name_means_two_controllers() {
        let own = Role::ALL.map(Role::name);
        let sidecars = SIDECARS.map(|(sidecar, _)| sidecar);
        let all: Vec<&str> = [&own[..], &sidecars[..], &OTHER_SIDECARS[..]].concat();
        let different: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(different.len(), all.len());
        for (sidecar, role) in SIDECARS {
            assert_eq!(Role::named(sidecar), Some(role), "{sidecar}");
        }
    }
}
