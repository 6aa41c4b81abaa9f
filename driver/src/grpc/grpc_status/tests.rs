use std::io;
use std::path::PathBuf;

use super::*;
use crate::csi::topology::{Topology, Unknown};
use crate::csi::validate::invalid;
use crate::storage::{GroupId, PoolId, SnapshotId, VolumeHandle, VolumeId};

fn kernel_errors() -> Vec<(kernel::Error, Code)> {
    let path = || PathBuf::from("/pool/x");
    let op = "open";
    vec![
        (
            kernel::Error::io(op, path(), io::Error::from_raw_os_error(libc::EIO)),
            Code::Internal,
        ),
        (
            kernel::Error::io(op, path(), io::Error::from_raw_os_error(libc::ENOSPC)),
            Code::ResourceExhausted,
        ),
        (
            kernel::Error::NoSpace { op, path: path() },
            Code::ResourceExhausted,
        ),
        (kernel::Error::Busy { op, path: path() }, Code::Aborted),
        (kernel::Error::NotFound { op, path: path() }, Code::Internal),
        (
            kernel::Error::Unsupported { op, path: path() },
            Code::FailedPrecondition,
        ),
        (
            kernel::Error::Tool {
                tool: "mkfs.ext4".into(),
                path: path(),
                message: "exit 1".into(),
            },
            Code::Internal,
        ),
        (
            kernel::Error::TimedOut {
                op,
                path: path(),
                seconds: 3,
            },
            Code::DeadlineExceeded,
        ),
    ]
}

/// A node without a known topology.
fn nowhere() -> Unknown {
    let labels = ["zone".to_owned()].into();
    let dir = std::path::Path::new("/nowhere");
    let topology = Topology::with_labels(Default::default(), labels, "n1", dir);
    topology.segments().unwrap_err()
}

fn pool_errors() -> Vec<(storage::Error, Code)> {
    let here = PoolId::generate();
    let volume = VolumeHandle::Id(VolumeId::generate(here));
    let (snapshot, group) = (SnapshotId::generate(here), GroupId::generate(here));
    let path = PathBuf::from("/pool/x");
    let mut errors = vec![
        (
            storage::Error::UnknownPool("x".into()),
            Code::InvalidArgument,
        ),
        (
            storage::Error::Unavailable {
                name: "x".into(),
                why: "gone".into(),
            },
            Code::Unavailable,
        ),
        (
            storage::Error::Locked {
                name: "x".into(),
                path: path.clone(),
            },
            Code::Unavailable,
        ),
        (storage::Error::ForeignPool(here), Code::FailedPrecondition),
        (storage::Error::NoVolume(volume.clone()), Code::NotFound),
        (storage::Error::NoSnapshot(snapshot), Code::NotFound),
        (storage::Error::NoGroup(group), Code::NotFound),
        (
            storage::Error::NoRoom {
                pool: "x".into(),
                wanted: 2,
                available: 1,
            },
            Code::ResourceExhausted,
        ),
        (
            storage::Error::Attached {
                volume,
                by: "/dev/loop1".into(),
            },
            Code::FailedPrecondition,
        ),
        (
            storage::Error::InGroup(snapshot, group),
            Code::InvalidArgument,
        ),
        (
            storage::Error::ImageMissing { path: path.clone() },
            Code::DataLoss,
        ),
        (
            storage::Error::CannotFreeze("no".into()),
            Code::FailedPrecondition,
        ),
        (
            storage::Error::Refused("no".into()),
            Code::FailedPrecondition,
        ),
        (
            storage::Error::Corrupt {
                path,
                why: "no JSON".into(),
            },
            Code::Internal,
        ),
    ];
    errors.extend(
        kernel_errors()
            .into_iter()
            .map(|(e, code)| (e.into(), code)),
    );
    errors
}

#[test]
fn every_kernel_error_has_its_code() {
    for (error, code) in kernel_errors() {
        assert_eq!(of_kernel(&error), code, "{error}");
        assert_eq!(Status::from(error).code(), code);
    }
}

#[test]
fn every_pool_error_has_its_code() {
    for (error, code) in pool_errors() {
        assert_eq!(of_pool(&error), code, "{error}");
        assert_eq!(Status::from(error).code(), code);
    }
}

#[test]
fn every_controller_error_has_its_code() {
    use controller::Error::*;
    let mut errors = vec![
        (invalid("name", "is required").into(), Code::InvalidArgument),
        (NotFound("volume x".into()), Code::NotFound),
        (AlreadyExists("x".into()), Code::AlreadyExists),
        (OutOfRange("x".into()), Code::OutOfRange),
        (ResourceExhausted("x".into()), Code::ResourceExhausted),
        (FailedPrecondition("x".into()), Code::FailedPrecondition),
        (BadToken("x".into()), Code::Aborted),
        (Place(nowhere()), Code::Unavailable),
        (Off("ControllerPublishVolume"), Code::Unimplemented),
    ];
    errors.extend(pool_errors().into_iter().map(|(e, code)| (e.into(), code)));
    errors.extend(
        kernel_errors()
            .into_iter()
            .map(|(e, code)| (e.into(), code)),
    );
    for (error, code) in errors {
        assert_eq!(of_controller(&error), code, "{error}");
        assert_eq!(Status::from(error).code(), code);
    }
}

#[test]
fn every_node_error_has_its_code() {
    use node::Error::*;
    let mut errors = vec![
        (
            invalid("target_path", "is required").into(),
            Code::InvalidArgument,
        ),
        (NotFound("volume x".into()), Code::NotFound),
        (AlreadyExists("x".into()), Code::AlreadyExists),
        (OutOfRange("x".into()), Code::OutOfRange),
        (ResourceExhausted("x".into()), Code::ResourceExhausted),
        (FailedPrecondition("x".into()), Code::FailedPrecondition),
        (Off("NodeExpandVolume"), Code::Unimplemented),
        (
            Path {
                path: "/t".into(),
                why: "is a symlink".into(),
            },
            Code::Internal,
        ),
        (DataLoss("x".into()), Code::DataLoss),
        (Place(nowhere()), Code::Unavailable),
    ];
    errors.extend(pool_errors().into_iter().map(|(e, code)| (e.into(), code)));
    errors.extend(
        kernel_errors()
            .into_iter()
            .map(|(e, code)| (e.into(), code)),
    );
    for (error, code) in errors {
        assert_eq!(of_node(&error), code, "{error}");
        assert_eq!(Status::from(error).code(), code);
    }
}

#[test]
fn causes_are_told_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("making the volume")]
    struct Outer(#[source] kernel::Error);

    let kernel = || kernel::Error::io("mount", "/m", io::Error::from_raw_os_error(libc::EIO));
    let told = "mount /m: Input/output error (os error 5)";
    assert_eq!(message(&kernel()), told);
    assert_eq!(Status::from(storage::Error::from(kernel())).message(), told);
    assert_eq!(
        message(&Outer(kernel())),
        format!("making the volume: {told}")
    );
}

#[test]
fn messages_end_somewhere() {
    let status = Status::from(invalid("parameters", "ä".repeat(100_000)));
    assert!(status.message().len() <= MAX_MESSAGE + '…'.len_utf8());
    assert!(status.message().ends_with("ä…"));
    assert!(status.details().is_empty());
}
