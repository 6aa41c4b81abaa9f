//! Why a backup or a restore failed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hostloop_terminal::humanize::bytes;

use crate::api::ApiError;

/// Why `backup` or `restore` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("claim {claim} is not in namespace {namespace}; -n chooses another one")]
    NoClaim { namespace: String, claim: String },
    #[error("claim {0} has no volume: create a pod that uses it, and wait until it is bound")]
    Unbound(String),
    #[error("claim {claim} is not one of driver {driver}: only its volumes can be backed up")]
    OtherDriver { claim: String, driver: String },
    #[error("claim {0} exists: restore into a new one")]
    ClaimExists(String),
    #[error(
        "driver {0} has no VolumeSnapshotClass that deletes its snapshots: name one with \
         --snapshot-class"
    )]
    NoSnapshotClass(String),
    /// The bytes of a filesystem can be read from a device alone.
    #[error(
        "the bytes of a volume with a filesystem are read from a block device that is restored from its \
         snapshot, which an administrator allows by an annotation of the snapshot's content: {0}"
    )]
    ModeChange(#[source] ApiError),
    /// What was waited for did not come.
    #[error("waiting {what}: {why}")]
    Waiting { what: String, why: String },
    #[error(
        "the content of the snapshot of claim {0} has no handle or size: kubectl hostloop check says whether \
         a snapshot controller runs"
    )]
    NoHandle(String),
    /// The service of changed blocks can't be found or asked.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The directory can't be used.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The volume's device was not copied.
    #[error("pod {pod}: copying the volume: {why}")]
    Copy { pod: String, why: String },
    #[error("stopped by {0}")]
    Stopped(&'static str),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// Why the changed blocks are unknown.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(
        "the driver does not serve changed blocks here: there is no SnapshotMetadataService {0}; install \
         it with --snapshot-metadata. If that is done, the controller's log says why there is none"
    )]
    NoService(String),
    #[error(
        "namespace {namespace} has no ServiceAccount {account}: apply deploy/examples/backup-client.yaml, \
         or name another with --service-account"
    )]
    NoAccount { namespace: String, account: String },
    #[error("the API server gave no token for ServiceAccount {0}")]
    NoToken(String),
    #[error("the address {0:?} of the SnapshotMetadataService is not HOST:PORT")]
    Address(String),
    #[error("the authority in the SnapshotMetadataService can't be used: {0}")]
    Authority(String),
    #[error(
        "the SnapshotMetadataService names Service {namespace}/{name}, and none of its pods runs: kubectl \
         -n {namespace} get pods"
    )]
    NoPod { namespace: String, name: String },
    /// No connection to the service.
    #[error("connecting to {to}: {why}")]
    Connect { to: String, why: String },
    /// The service refuses the call.
    #[error("the service of changed blocks refuses: {} ({:?})", .0.message(), .0.code())]
    Call(#[from] tonic::Status),
    #[error("the service of changed blocks did not answer within {0} s")]
    Silent(u64),
    /// The service's answer can't be right.
    #[error("the service of changed blocks answers wrongly: {0}")]
    Answer(String),
}

/// Why a directory has no backup, or can't take one.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: it can't be read: {source}", .path.display())]
    Manifest {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{}: another backup into it is running: wait for its end", .0.display())]
    Locked(PathBuf),
    #[error("{} is of version {version}, and this program knows {known}: use a newer program", .path.display())]
    Version {
        path: PathBuf,
        version: u32,
        known: u32,
    },
    #[error("{}: {file:?} is not the name of a file of data, such as 00001.data", .path.display())]
    Name { path: PathBuf, file: String },
    #[error("{} has no backup: name a directory that backup --to has made", .0.display())]
    Empty(PathBuf),
    #[error("{} has backups of another volume, {has}: name another directory for volume {requested}", .path.display())]
    OtherVolume {
        path: PathBuf,
        has: String,
        requested: String,
    },
    #[error(
        "{}: the backups do not follow each other: {file} changes snapshot {base:?}, and the one before \
         it is not of that snapshot",
        .path.display()
    )]
    Gap {
        path: PathBuf,
        file: String,
        base: String,
    },
    #[error("{}: its checksum is not the one of the backup: the file was changed or is damaged", .0.display())]
    Checksum(PathBuf),
    #[error("{}: {why}", .path.display())]
    Content { path: PathBuf, why: &'static str },
}

impl ArchiveError {
    /// The error of a file.
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ArchiveError {
        let path = path.into();
        move |source| ArchiveError::Io { path, source }
    }

    /// The error of a manifest.
    pub(super) fn manifest(
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(serde_json::Error) -> ArchiveError {
        let path = path.into();
        move |source| ArchiveError::Manifest { path, source }
    }
}

/// Why a copy stands still.
pub(super) fn stalled(after: Duration, copied: u64) -> String {
    format!(
        "nothing came for {} s, after {}",
        after.as_secs(),
        bytes(copied)
    )
}
