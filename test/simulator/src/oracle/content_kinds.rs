//! The kinds of contents, and where they say what they belong to.

/// The contents of snapshots, or of groups.
pub(super) struct ContentKind {
    pub(super) plural: &'static str,
    /// The objects of users that the contents belong to, by plural.
    pub(super) owners: &'static str,
    /// Where a content has the UID of its owner.
    pub(super) owner: &'static str,
    /// Where a pre-provisioned content has its handle.
    pub(super) given: &'static str,
    /// The annotation of contents that are being taken.
    pub(super) being_created: &'static str,
    /// The annotation of contents that may go: their owner is being deleted.
    pub(super) being_deleted: &'static str,
}

pub(super) const SNAPSHOTS: ContentKind = ContentKind {
    plural: "volumesnapshotcontents",
    owners: "volumesnapshots",
    owner: "/spec/volumeSnapshotRef/uid",
    given: "/spec/source/snapshotHandle",
    being_created: "snapshot.storage.kubernetes.io/volumesnapshot-being-created",
    being_deleted: "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted",
};

const GROUPS: ContentKind = ContentKind {
    plural: "volumegroupsnapshotcontents",
    owners: "volumegroupsnapshots",
    owner: "/spec/volumeGroupSnapshotRef/uid",
    given: "/spec/source/groupSnapshotHandles/volumeGroupSnapshotHandle",
    being_created: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created",
    being_deleted: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted",
};

pub(super) const KINDS: [ContentKind; 2] = [SNAPSHOTS, GROUPS];
