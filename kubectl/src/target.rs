//! What `describe`, `events` and `logs` are about: an object that a person names as for kubectl.

use std::fmt;

use super::api::ApiError;
use super::claim_objects;
use super::cluster::Cluster;
use super::subject::Subject;
use super::volume_objects::VolumeObjects;

/// The object of a command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The claim; or KIND/NAME or KIND NAME, with the kind claim, snapshot, group or pod.
    /// pod/NAME/VOLUME is one inline volume of a pod
    #[arg(value_name = "CLAIM|KIND/NAME", required = true, num_args = 1..=2)]
    words: Vec<String>,
}

impl TargetArgs {
    pub(super) fn target(&self) -> Result<Target, TargetError> {
        match self.words.as_slice() {
            [kind, name] if kind.contains('/') => {
                Err(TargetError::Several(kind.clone(), name.clone()))
            }
            [kind, name] => Target::parse(&format!("{kind}/{name}")),
            words => Target::parse(&words.concat()),
        }
    }
}

/// Why words name no object.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("the name is missing")]
    NoName,
    #[error("only a pod has a second name, of a volume")]
    SecondName,
    #[error("the kind must be claim, snapshot, group or pod; -n sets the namespace")]
    Kind,
    #[error("{0} and {1} are two objects; name one, as KIND/NAME or KIND NAME")]
    Several(String, String),
}

/// What is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Claim(String),
    Snapshot(String),
    Group(String),
    /// The inline volumes of a pod of this name, or one of them.
    Inline(String, Option<String>),
}

impl Target {
    /// Reads `NAME`, `KIND/NAME` or `pod/NAME/VOLUME`, with kubectl's names of the kinds.
    pub(super) fn parse(text: &str) -> Result<Target, TargetError> {
        let (kind, rest) = text.split_once('/').unwrap_or(("claim", text));
        let (name, part) = match rest.split_once('/') {
            Some((name, part)) => (name.to_owned(), Some(part.to_owned())),
            None => (rest.to_owned(), None),
        };
        // `-o name` prints kinds with their group.
        let kind = kind.to_lowercase();
        match kind.split('.').next().unwrap_or_default() {
            _ if name.is_empty() || part.as_ref().is_some_and(String::is_empty) => {
                Err(TargetError::NoName)
            }
            "pod" | "pods" | "po" => Ok(Target::Inline(name, part)),
            _ if part.is_some() => Err(TargetError::SecondName),
            "claim" | "pvc" | "persistentvolumeclaim" | "persistentvolumeclaims" => {
                Ok(Target::Claim(name))
            }
            "snapshot" | "vs" | "volumesnapshot" | "volumesnapshots" => Ok(Target::Snapshot(name)),
            "group" | "vgs" | "volumegroupsnapshot" | "volumegroupsnapshots" => {
                Ok(Target::Group(name))
            }
            _ => Err(TargetError::Kind),
        }
    }

    /// Reads the object and those that belong to it. Without it, the result has no objects.
    pub(super) async fn gather(&self, cluster: &Cluster) -> Result<VolumeObjects, ApiError> {
        match self {
            Target::Claim(name) => claim_objects::gather(cluster, name).await,
            Target::Snapshot(name) => claim_objects::gather_snapshot(cluster, name).await,
            Target::Group(name) => claim_objects::gather_group(cluster, name).await,
            Target::Inline(pod, _) => claim_objects::gather_pod(cluster, pod).await,
        }
    }

    /// Adds the events about the objects, and what else a claim has.
    pub(super) async fn complete(&self, cluster: &Cluster, objects: &mut VolumeObjects) {
        if let Target::Claim(_) = self {
            claim_objects::complete(cluster, objects).await;
        } else {
            claim_objects::read_events(cluster, objects).await;
        }
    }

    /// True if the object was found.
    pub(super) fn is_in(&self, objects: &VolumeObjects) -> bool {
        match self {
            Target::Claim(_) => !objects.claims.is_empty(),
            Target::Snapshot(_) => !objects.snapshots.is_empty(),
            Target::Group(_) => !objects.groups.is_empty(),
            Target::Inline(..) => !objects.pods.is_empty(),
        }
    }

    /// The names under which logs have it.
    pub(super) fn subject(&self, cluster: &Cluster, objects: &VolumeObjects) -> Subject {
        match self {
            Target::Claim(name) => claim_objects::subject(cluster, name, objects),
            Target::Snapshot(_) | Target::Group(_) => claim_objects::snapshot_subject(objects),
            Target::Inline(_, volume) => {
                claim_objects::inline_subject(cluster, volume.as_deref(), objects)
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Claim(name) => write!(f, "claim {name}"),
            Target::Snapshot(name) => write!(f, "snapshot {name}"),
            Target::Group(name) => write!(f, "group {name}"),
            Target::Inline(pod, _) => write!(f, "pod {pod}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn claim(name: &str) -> Result<Target, TargetError> {
        Ok(Target::Claim(name.to_owned()))
    }

    fn snapshot(name: &str) -> Result<Target, TargetError> {
        Ok(Target::Snapshot(name.to_owned()))
    }

    fn group(name: &str) -> Result<Target, TargetError> {
        Ok(Target::Group(name.to_owned()))
    }

    fn inline(pod: &str, volume: Option<&str>) -> Result<Target, TargetError> {
        Ok(Target::Inline(pod.to_owned(), volume.map(str::to_owned)))
    }

    #[rstest]
    #[case::claim("data", claim("data"))]
    #[case::claim_by_kind("pvc/data", claim("data"))]
    #[case::claim_in_words("pvc data", claim("data"))]
    #[case::whole_kind("PersistentVolumeClaim/data", claim("data"))]
    #[case::snapshot("snapshot/s", snapshot("s"))]
    #[case::snapshot_in_words("vs s", snapshot("s"))]
    #[case::snapshot_by_o_name("volumesnapshot.snapshot.storage.k8s.io/s", snapshot("s"))]
    #[case::group("group/g", group("g"))]
    #[case::group_in_words("vgs g", group("g"))]
    #[case::pod("pod/web", inline("web", None))]
    #[case::pod_in_words("pods web", inline("web", None))]
    #[case::inline("po/web/scratch", inline("web", Some("scratch")))]
    #[case::no_name("snapshot/", Err(TargetError::NoName))]
    #[case::no_volume("pod/web/", Err(TargetError::NoName))]
    #[case::second_name("pvc/data/x", Err(TargetError::SecondName))]
    #[case::nothing("", Err(TargetError::NoName))]
    #[case::namespace("demo/data", Err(TargetError::Kind))]
    #[case::two("pvc/a pvc/b", Err(TargetError::Several("pvc/a".into(), "pvc/b".into())))]
    fn targets(#[case] words: &str, #[case] target: Result<Target, TargetError>) {
        let words = words.split(' ').map(str::to_owned).collect();
        assert_eq!(TargetArgs { words }.target(), target);
    }
}
