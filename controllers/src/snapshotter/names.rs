//! Annotations, finalizers and labels that users, dashboards and the snapshot-controller rely on.

/// Contents with this annotation are members of a group snapshot: they are never created or
/// deleted one by one. Its value is the group's handle.
pub(super) const GROUP_MEMBER: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";
/// A field of snapshot classes. A parameter of this name only reaches the driver.
pub(super) const DELETION_POLICY: &str = "deletionPolicy";

/// The annotations and the finalizer of contents of one kind.
#[derive(Debug)]
pub(crate) struct AnnotationKeys {
    /// Annotation: the driver was asked to take the snapshot, and its final answer is not known
    /// yet.
    pub(super) being_created: &'static str,
    /// The snapshot-controller's annotation: the VolumeSnapshot or VolumeGroupSnapshot is being
    /// deleted.
    pub(crate) being_deleted: &'static str,
    /// The finalizer that keeps the content until the snapshot is gone.
    pub(crate) finalizer: &'static str,
    /// Annotation: the name of the secret for create and delete calls.
    pub(super) secret_name: &'static str,
    /// Annotation: the namespace of that secret.
    pub(super) secret_namespace: &'static str,
}

/// The keys of VolumeSnapshotContents.
pub(crate) const SINGLE: AnnotationKeys = AnnotationKeys {
    being_created: "snapshot.storage.kubernetes.io/volumesnapshot-being-created",
    being_deleted: "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted",
    finalizer: "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
    secret_name: "snapshot.storage.kubernetes.io/deletion-secret-name",
    secret_namespace: "snapshot.storage.kubernetes.io/deletion-secret-namespace",
};

/// The keys of VolumeGroupSnapshotContents.
pub(crate) const GROUP: AnnotationKeys = AnnotationKeys {
    being_created: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created",
    being_deleted: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted",
    finalizer: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection",
    secret_name: "groupsnapshot.storage.kubernetes.io/deletion-secret-name",
    secret_namespace: "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace",
};

/// The name for a new snapshot: the prefix and the UID of the user's object. With a length, the
/// name has only that many characters of the UID, without its dashes.
pub(super) fn snapshot_name(prefix: &str, uid: &str, length: Option<usize>) -> String {
    match length {
        None => format!("{prefix}-{uid}"),
        Some(length) => {
            let short: String = uid.chars().filter(|c| *c != '-').take(length).collect();
            format!("{prefix}-{short}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_snapshots() {
        for (prefix, length, name) in [
            ("snapshot", None, "snapshot-0a1b-2c3d"),
            ("s", Some(6), "s-0a1b2c"),
            ("s", Some(8), "s-0a1b2c3d"),
            ("s", Some(99), "s-0a1b2c3d"),
        ] {
            assert_eq!(snapshot_name(prefix, "0a1b-2c3d", length), name);
        }
    }
}
