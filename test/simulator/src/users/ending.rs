//! What users and an administrator delete at the end of a history, one after the other.

use crate::cluster::{Cluster, GREEDY, NAMESPACE};
use crate::foreign::is_foreign;
use crate::model::view::{name, namespace};
use crate::users::{content_path, group_content_path, path_in, volume_path};

/// The path of an object with a name.
type PathOf = fn(&str) -> String;

/// A part of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Users delete pods, snapshots, groups and claims.
    OfUsers,
    /// An administrator deletes the volumes and contents that are left.
    OfAdministrator,
}

impl Ending {
    pub(crate) const ALL: [Ending; 2] = [Ending::OfUsers, Ending::OfAdministrator];

    /// The paths of what is deleted.
    pub(crate) fn paths(self, cluster: &Cluster) -> Vec<String> {
        match self {
            Ending::OfUsers => of_users(cluster),
            Ending::OfAdministrator => of_administrator(cluster),
        }
    }
}

fn of_users(cluster: &Cluster) -> Vec<String> {
    let mut paths = Vec::new();
    for plural in [
        "pods",
        "volumesnapshots",
        "volumegroupsnapshots",
        "persistentvolumeclaims",
    ] {
        let objects = cluster.api.shared(plural);
        let theirs = objects
            .iter()
            .filter(|object| [NAMESPACE, GREEDY].contains(&namespace(object)));
        paths.extend(theirs.map(|object| path_in(namespace(object), plural, name(object))));
    }
    paths
}

fn of_administrator(cluster: &Cluster) -> Vec<String> {
    let kinds: [(&str, PathOf); 3] = [
        ("persistentvolumes", volume_path),
        ("volumesnapshotcontents", content_path),
        ("volumegroupsnapshotcontents", group_content_path),
    ];
    let mut paths = Vec::new();
    for (plural, path) in kinds {
        let objects = cluster.api.shared(plural);
        let ours = objects.iter().filter(|object| !is_foreign(object));
        paths.extend(ours.map(|object| path(name(object))));
    }
    paths
}
