use std::io;
use std::path::PathBuf;

use hostloop_proto::status_details::lacks_room;

use super::*;
use crate::csi::topology::{Topology, Unknown};
use crate::csi::validate::invalid;
use crate::storage::{GroupId, PoolId, SnapshotId, VolumeHandle, VolumeId};

mod reference;

type Errors<E> = Vec<(E, Code)>;

fn kernel_errors<E: From<kernel::Error>>() -> Errors<E> {
    use kernel::Error::*;
    let path = || PathBuf::from("/pool/x");
    let op = "open";
    let io = |errno| kernel::Error::io(op, path(), io::Error::from_raw_os_error(errno));
    let tool = Tool {
        tool: "mkfs.ext4".into(),
        path: path(),
        code: Some(1),
        message: "exit 1".into(),
    };
    let late = TimedOut {
        op,
        path: path(),
        seconds: 3,
    };
    let unsupported = Unsupported { op, path: path() };
    let errors = [
        (io(libc::EIO), Code::Internal),
        (io(libc::ENOSPC), Code::ResourceExhausted),
        (NoSpace { op, path: path() }, Code::ResourceExhausted),
        (Busy { op, path: path() }, Code::Aborted),
        (NotFound { op, path: path() }, Code::Internal),
        (unsupported, Code::FailedPrecondition),
        (tool, Code::Internal),
        (late, Code::DeadlineExceeded),
        (
            Stopped {
                path: path(),
                copied: 4096,
            },
            Code::DeadlineExceeded,
        ),
        (
            CloneStopped {
                path: path(),
                extents: 512,
            },
            Code::DeadlineExceeded,
        ),
        (
            NotMountable {
                path: path(),
                why: "bad".into(),
            },
            Code::Internal,
        ),
        (
            NotRun {
                tool: "mkfs.xfs",
                path: path(),
                why: "not installed".into(),
            },
            Code::Internal,
        ),
        (Covered { op, path: path() }, Code::Aborted),
        (Unwanted { path: path() }, Code::Aborted),
        (
            Silent {
                device: path(),
                file: path(),
            },
            Code::Unavailable,
        ),
        (
            UnknownMount {
                device: path(),
                mount_point: path(),
            },
            Code::Unavailable,
        ),
    ];
    errors.map(|(error, code)| (error.into(), code)).into()
}

/// A node without a known topology.
fn nowhere() -> Unknown {
    let labels = ["zone".to_owned()].into();
    let dir = std::path::Path::new("/nowhere");
    let topology = Topology::with_labels(Default::default(), labels, "n1", dir);
    topology.segments().unwrap_err()
}

/// A pool without room.
fn full_pool() -> storage::Error {
    storage::Error::NoRoom {
        pool: "x".into(),
        requested: 2,
        available: 1,
    }
}

fn pool_errors<E: From<storage::Error>>() -> Errors<E> {
    use storage::Error::*;
    let here = PoolId::generate();
    let volume = VolumeHandle::Id(VolumeId::generate(here));
    let (snapshot, group) = (SnapshotId::generate(here), GroupId::generate(here));
    let path = PathBuf::from("/pool/x");
    let unavailable = Unavailable {
        name: "x".into(),
        why: "gone".into(),
    };
    let locked = Locked {
        name: "x".into(),
        path: path.clone(),
    };
    let attached = Attached {
        volume: volume.clone(),
        by: "/dev/loop1".into(),
    };
    let corrupt = Corrupt {
        path: path.clone(),
        why: "no JSON".into(),
    };
    let other_node = OtherNode {
        name: "x".into(),
        why: "belongs to node n2".into(),
    };
    let full_below = NoRoomBelow {
        pool: "x".into(),
        path: path.clone(),
        lacks: 2,
        free: 1,
    };
    let quota = SnapshotQuota {
        namespace: "ns".into(),
        requested: 2,
        used: 1,
        limit: 2,
    };
    let unwritable = Unwritable {
        file: "volume.json",
        source: serde::ser::Error::custom("no"),
    };
    let errors = [
        (UnknownPool("x".into()), Code::InvalidArgument),
        (unavailable, Code::Unavailable),
        (locked, Code::Unavailable),
        (other_node, Code::Unavailable),
        (ForeignPool(here), Code::FailedPrecondition),
        (NoVolume(volume), Code::NotFound),
        (NoSnapshot(snapshot), Code::NotFound),
        (NoGroup(group), Code::NotFound),
        (full_pool(), Code::ResourceExhausted),
        (full_below, Code::ResourceExhausted),
        (quota, Code::ResourceExhausted),
        (attached, Code::FailedPrecondition),
        (InGroup(snapshot, group), Code::InvalidArgument),
        (ImageMissing { path }, Code::DataLoss),
        (CannotFreeze("no".into()), Code::FailedPrecondition),
        (Refused("no".into()), Code::FailedPrecondition),
        (corrupt, Code::Internal),
        (unwritable, Code::Internal),
    ];
    let errors = errors.into_iter().chain(kernel_errors());
    errors.map(|(error, code)| (error.into(), code)).collect()
}

fn assert_codes(errors: Errors<Error>) {
    for (error, code) in errors {
        let status = Status::from(error);
        assert_eq!(status.code(), code, "{status}");
    }
}

fn call_errors() -> Errors<Error> {
    use Error::*;
    let path = Path {
        path: "/t".into(),
        why: "is a symlink".into(),
    };
    vec![
        (invalid("name", "is required").into(), Code::InvalidArgument),
        (NotFound("volume x".into()), Code::NotFound),
        (AlreadyExists("x".into()), Code::AlreadyExists),
        (OutOfRange("x".into()), Code::OutOfRange),
        (ResourceExhausted("x".into()), Code::ResourceExhausted),
        (FailedPrecondition("x".into()), Code::FailedPrecondition),
        (NotYet("x".into()), Code::Unavailable),
        (BadToken("x".into()), Code::Aborted),
        (Place(nowhere()), Code::Unavailable),
        (Off("ControllerPublishVolume"), Code::Unimplemented),
        (path, Code::Internal),
        (DataLoss("x".into()), Code::DataLoss),
        (NoRoomToExpand(full_pool()), Code::OutOfRange),
        (NoRoomToModify(full_pool()), Code::InvalidArgument),
    ]
}

#[test]
fn every_error_of_a_call_has_its_code() {
    assert_codes(call_errors());
    assert_codes(pool_errors());
    assert_codes(kernel_errors());
}

/// The detail is for refusals alone: what met a full disk on its way may have begun.
#[test]
fn a_refusal_for_lack_of_room_says_so() {
    for (error, code) in [
        (Error::from(full_pool()), Code::ResourceExhausted),
        (Error::of_expansion(full_pool()), Code::OutOfRange),
        (Error::of_modification(full_pool()), Code::InvalidArgument),
    ] {
        let status = Status::from(error);
        assert_eq!(status.code(), code);
        assert!(lacks_room(&status), "{status:?}");
        assert_eq!(
            status.message().matches("has no room for 2 bytes").count(),
            1,
            "{status}"
        );
    }
    // A request that fits into no pool has the same codes.
    for error in [
        Error::OutOfRange("x".to_owned()),
        invalid("mutable_parameters", "x").into(),
    ] {
        let status = Status::from(error);
        assert!(!lacks_room(&status), "{status:?}");
    }
    let midway = || {
        storage::Error::from(kernel::Error::NoSpace {
            op: "copy",
            path: "/p".into(),
        })
    };
    for error in [
        Error::from(midway()),
        Error::of_expansion(midway()),
        Error::of_modification(midway()),
        Error::ResourceExhausted("the pool is full".to_owned()),
    ] {
        let status = Status::from(error);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(!lacks_room(&status), "{status:?}");
    }
}

#[test]
fn a_message_contains_each_cause_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("making the volume")]
    struct Outer(#[source] kernel::Error);

    let kernel = || kernel::Error::io("mount", "/m", io::Error::from_raw_os_error(libc::EIO));
    let cause = "mount /m: Input/output error (os error 5)";
    assert_eq!(message(&kernel()), cause);
    let status = Status::from(Error::from(storage::Error::from(kernel())));
    assert_eq!(status.message(), cause);
    let outer = message(&Outer(kernel()));
    assert_eq!(outer, format!("making the volume: {cause}"));
}

#[test]
fn messages_have_a_limited_length() {
    let status = Status::from(invalid("parameters", "ä".repeat(100_000)));
    assert!(status.message().len() <= MAX_MESSAGE);
    assert!(status.message().ends_with("ä…"));
    assert!(status.details().is_empty());
}
