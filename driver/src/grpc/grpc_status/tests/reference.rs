//! The table of codes in `docs/reference/grpc-codes.md`.

use hostloop_document::{check_named_table, table};
use hostloop_proto::calls::spec_name;

use super::*;

/// Calls about one volume that exists.
const OF_A_VOLUME: &str = "all with a `volume_id` but DeleteVolume";
/// Calls that begin with the pools.
const ANY: &str = "any";
/// No call: another error takes the place of this one before it is answered.
const NONE: &str = "none";
/// Calls that run mkfs, fsck or a tool that grows a filesystem.
const WITH_TOOLS: &str = "CreateVolume, NodeExpandVolume, NodeStageVolume, NodePublishVolume";
/// Calls that mount, or run such a tool.
const SLOW: &str = "CreateVolume, NodeExpandVolume, NodeStageVolume, NodePublishVolume, \
                    NodeUnstageVolume, NodeUnpublishVolume";
/// Calls that allocate blocks.
const ALLOCATING: &str =
    "CreateVolume, CreateSnapshot, CreateVolumeGroupSnapshot, NodePublishVolume of inline volumes";
/// Calls that copy, or allocate all of a thick volume.
const LONG: &str = "CreateVolume, CreateSnapshot, CreateVolumeGroupSnapshot, \
                    ControllerExpandVolume, ControllerModifyVolume, NodeStageVolume, \
                    NodeExpandVolume";
/// Calls that mount or unmount.
const MOUNTING: &str = "NodeStageVolume, NodePublishVolume, NodeUnstageVolume, NodeUnpublishVolume";

#[test]
fn the_reference_has_every_error() {
    let errors = call_errors()
        .into_iter()
        .chain(pool_errors())
        .chain(kernel_errors());
    let mut rows: Vec<(Code, [String; 3])> = Vec::new();
    for (error, code) in errors {
        let (calls, when) = of_call_error(&error);
        if calls == NONE {
            continue;
        }
        let row = [
            spec_name(code).to_owned(),
            calls.to_owned(),
            when.to_owned(),
        ];
        if !rows.iter().any(|(_, known)| *known == row) {
            rows.push((code, row));
        }
    }
    rows.sort_by_key(|(code, _)| *code as i32);
    let rows: Vec<[String; 3]> = rows.into_iter().map(|(_, row)| row).collect();
    check_named_table(
        "docs/reference/grpc-codes.md",
        "errors",
        &table(["Code", "Calls", "When"], &rows),
        "driver/src/grpc/grpc_status.rs",
    );
}

/// The calls that an error ends, and when. Without a pattern for all, so that nothing is left out.
fn of_call_error(error: &Error) -> (&'static str, &'static str) {
    use Error::*;
    match error {
        Invalid(_) => (
            ANY,
            "a field is missing, too long or not allowed. The message begins with the field",
        ),
        NotFound(_) => (
            ANY,
            "a volume, snapshot, group, node or source does not exist, or the volume is not at the \
             path",
        ),
        AlreadyExists(_) => (
            "CreateVolume, CreateSnapshot, CreateVolumeGroupSnapshot, ControllerPublishVolume, \
             NodeStageVolume, NodePublishVolume",
            "the name belongs to an object of another request, or the volume is published or \
             staged for another use",
        ),
        OutOfRange(_) => (
            "CreateVolume, ControllerExpandVolume, NodeExpandVolume, NodePublishVolume, \
             GetMetadataAllocated, GetMetadataDelta",
            "no filesystem, pool or limit allows the size, or the offset is outside the snapshot",
        ),
        NoRoomToExpand(_) => (
            "ControllerExpandVolume",
            "the pool has no room for the growth. The volume keeps its size",
        ),
        NoRoomToModify(_) => (
            "ControllerModifyVolume",
            "the pool has no room for a thick volume. The volume keeps its parameters",
        ),
        ResourceExhausted(_) => (
            "CreateVolume, CreateSnapshot, ControllerPublishVolume, NodeStageVolume, \
             NodeExpandVolume, NodePublishVolume",
            "the node is in none of the requisite topologies, has as many volumes as it may, or \
             its pool is full",
        ),
        FailedPrecondition(_) => (
            ANY,
            "a call has to come first, the volume is in use, or the base of a delta is deleted. The \
             message says what to do",
        ),
        NotYet(_) => (
            "ControllerPublishVolume, ControllerUnpublishVolume, and all of Node with a `volume_id`",
            "the node of a shared volume has to attach it again, or the container of another node may \
             still run",
        ),
        BadToken(_) => (
            "ListVolumes, ListSnapshots, ControllerListVolumeHealth",
            "the `starting_token` is not one that the driver gave",
        ),
        Off(_) => (
            "those that a flag switches off",
            "a flag switches the call off",
        ),
        Path { .. } => (
            MOUNTING,
            "the path is a symbolic link, or the mount of another program",
        ),
        DataLoss(_) => (
            "NodeStageVolume, NodePublishVolume",
            "the volume had a filesystem and has none now. It is left as it is",
        ),
        Place(_) => (
            "NodeGetInfo, CreateVolume, ListVolumes, GetCapacity, and calls about snapshots",
            "the node's labels for its topology are not read yet",
        ),
        Pool(error) => of_pool_error(error),
        Kernel(error) => of_kernel_error(error),
    }
}

fn of_pool_error(error: &storage::Error) -> (&'static str, &'static str) {
    use storage::Error::*;
    match error {
        UnknownPool(_) => (
            "CreateVolume, NodePublishVolume",
            "no pool of this name is configured",
        ),
        Unavailable { .. } => (ANY, "the pool is missing, or not open yet"),
        Locked { .. } => (ANY, "another process has the pool"),
        OtherNode { .. } => (ANY, "the pool belongs to another node"),
        ForeignPool(_) => (ANY, "the ID is of a pool that is not on this node"),
        NoVolume(_) => (OF_A_VOLUME, "the volume does not exist"),
        NoSnapshot(_) => (
            "CreateVolume, GetSnapshot, GetMetadataAllocated, GetMetadataDelta",
            "the snapshot does not exist",
        ),
        NoGroup(_) => ("GetVolumeGroupSnapshot", "the group does not exist"),
        NoRoom { .. } => (ALLOCATING, "the pool cannot promise the space"),
        NoRoomBelow { .. } => (
            "CreateVolume",
            "the disk below a pool in an image cannot hold a thick volume",
        ),
        SnapshotQuota { .. } => (
            "CreateSnapshot, CreateVolumeGroupSnapshot",
            "the namespace's snapshots would promise more than \
             `--max-snapshot-bytes-per-namespace`",
        ),
        Attached { .. } => ("DeleteVolume", "a loop device still holds the image"),
        InGroup(..) => (
            "DeleteSnapshot",
            "the snapshot belongs to a group. Delete the group",
        ),
        ImageMissing { .. } => (
            OF_A_VOLUME,
            "the record exists, but the volume's image does not",
        ),
        CannotFreeze(_) => (
            "CreateVolume from a volume, CreateSnapshot, CreateVolumeGroupSnapshot",
            "the source cannot be frozen, or not within `--max-freeze`",
        ),
        Refused(_) => (
            ANY,
            "the operation would break a guarantee. The message says which",
        ),
        Corrupt { .. } => (ANY, "a record cannot be read"),
        Unwritable { .. } => (ANY, "a record cannot be encoded. Nothing was written"),
        Kernel(error) => of_kernel_error(error),
    }
}

fn of_kernel_error(error: &kernel::Error) -> (&'static str, &'static str) {
    use kernel::Error::*;
    match error {
        Io { .. } | NotFound { .. } => (ANY, "a system call failed"),
        NoSpace { .. } => (ANY, "the disk has no space left"),
        Busy { .. } => (
            MOUNTING,
            "a device or mount is in use, or another process took it. Try again",
        ),
        Unsupported { .. } => (ANY, "this kernel or filesystem cannot do it"),
        NotMountable { .. } => (MOUNTING, "the kernel cannot mount the filesystem"),
        Tool { .. } | NotRun { .. } => (
            WITH_TOOLS,
            "mkfs, fsck or another tool failed. The message ends with what it says",
        ),
        Silent { .. } => (
            MOUNTING,
            "a loop device does not show its file, because that filesystem does not answer",
        ),
        UnknownMount { .. } => (
            MOUNTING,
            "a mounted btrfs that does not answer may be on the device",
        ),
        Covered { .. } => (MOUNTING, "others changed the mounts meanwhile. Try again"),
        TimedOut { .. } => (SLOW, "a tool or system call took longer than its limit"),
        Stopped { .. } | CloneStopped { .. } => (NONE, "CannotFreeze says it"),
        Unwanted { .. } => (
            LONG,
            "no caller waited for the copy or the allocation any more. Try again",
        ),
    }
}
