//! Which loops run: `--controllers`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A loop, by the name it is picked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Volumes for claims.
    Provisioner,
    /// Volumes at nodes.
    Attacher,
    /// Larger volumes, and modified ones.
    Resizer,
    /// Snapshots for contents.
    Snapshotter,
    /// What room there is, for the scheduler.
    Capacity,
    /// Events about volumes that are not well.
    Health,
    /// The driver, for kubelet.
    Registrar,
    /// Whether the process is alive, for kubelet.
    Liveness,
    /// Nodes for claims, where every node has loops of its own.
    Placement,
    /// What nodes leave behind that are gone.
    GoneNodes,
    /// Volumes nobody knows.
    Orphans,
    /// Contents for snapshots: the part that is the cluster's, not a driver's.
    SnapshotController,
}

impl Role {
    /// All there are.
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

    /// Its name.
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

/// Those that were picked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles(BTreeSet<Role>);

impl Roles {
    /// Whether this one was.
    pub fn has(&self, role: Role) -> bool {
        self.0.contains(&role)
    }
}

/// A list that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolesError {
    /// A word that is no loop's name.
    #[error("there is no controller {0:?}; there are {names}", names = names())]
    Unknown(String),
    /// Nothing is left.
    #[error("this picks no controller at all")]
    Nothing,
}

fn names() -> String {
    Role::ALL.map(Role::name).join(", ")
}

impl FromStr for Roles {
    type Err = RolesError;

    /// Reads a list: names, `*` for all but the snapshot-controller, and `-name` for all of the
    /// others without this one. A list of `-name` alone begins with `*`.
    fn from_str(list: &str) -> Result<Self, RolesError> {
        let words: Vec<&str> = list
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect();
        let usual = || {
            Role::ALL
                .into_iter()
                .filter(|role| *role != Role::SnapshotController)
        };
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
