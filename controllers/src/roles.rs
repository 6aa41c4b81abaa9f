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
    /// Emits events about unhealthy volumes.
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
}

impl Role {
    /// All controllers.
    pub const ALL: [Role; 12] = [
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
        }
    }
}

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

/// The controllers that `*` selects: each cluster has one snapshot-controller for all drivers.
fn usual() -> impl Iterator<Item = Role> {
    Role::ALL
        .into_iter()
        .filter(|role| *role != Role::SnapshotController)
}

/// An invalid value of `--controllers`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolesError {
    #[error("there is no controller {0:?}; there are {names}", names = names())]
    Unknown(String),
    #[error("the list selects no controller")]
    Nothing,
}

fn names() -> String {
    Role::ALL.map(Role::name).join(", ")
}

impl FromStr for Roles {
    type Err = RolesError;

    /// Parses a list: names, `*` for all except the snapshot-controller, and `-name` to exclude
    /// one. A list that only excludes starts from `*`.
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
            let known = Role::ALL.into_iter().find(|role| role.name() == name);
            let role = known.ok_or_else(|| RolesError::Unknown(name.to_owned()))?;
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
            ("provisioner, attacher", "provisioner attacher".to_owned()),
            (
                "-attacher,-health",
                usual.replace("attacher ", "").replace("health ", ""),
            ),
            ("*,-liveness", usual.replace(" liveness", "")),
            ("-provisioner,provisioner,resizer", "resizer".to_owned()),
        ] {
            let roles: Roles = list.parse().expect(list);
            let names: Vec<_> = roles.0.iter().map(|role| role.name()).collect();
            assert_eq!(names.join(" "), picked, "{list:?}");
        }
        for (list, error) in [
            ("attach", RolesError::Unknown("attach".to_owned())),
            ("-*", RolesError::Unknown("*".to_owned())),
            ("health,-health", RolesError::Nothing),
        ] {
            assert_eq!(list.parse::<Roles>(), Err(error), "{list:?}");
        }
    }
}
