//! Implements [`ContentKind`] for VolumeSnapshotContents.

use std::time::SystemTime;

use hostloop_proto::csi;
use serde_json::Value;

use super::content_client::{EventTemplate, Shared, WorkError};
use super::content_reconciler::{Answer, ContentKind, Reconciler, SnapshotInputs};
use super::parameters::LIST_SECRET;
use super::{Options, status};
use crate::api::object_name;
use crate::cache::{Caches, Store};
use crate::csi::Failure;
use crate::csi::driver::ControllerCapability;
use crate::secrets::Credentials;
use crate::snapshots::content::{Content, SINGLE};
use crate::snapshots::{VolumeSnapshotClass, VolumeSnapshotContent};

/// VolumeSnapshotContents.
pub(super) struct SingleContents;

impl ContentKind for SingleContents {
    type Content = VolumeSnapshotContent;
    type Class = VolumeSnapshotClass;
    type Making = csi::CreateSnapshotRequest;
    type Snapshot = csi::Snapshot;
    type Deletion = csi::DeleteSnapshotRequest;

    const QUEUES: (&'static str, &'static str, &'static str) = (
        "snapshotter-content",
        "snapshotter-stray-content",
        "snapshotter-class",
    );
    const CALL: &'static str = "CreateSnapshot";
    const ASKING: &'static str = LIST_SECRET;
    const CREATE: EventTemplate = EventTemplate {
        reason: SINGLE.failed,
        message: "Failed to create snapshot",
    };
    const CHECK: EventTemplate = EventTemplate {
        reason: "SnapshotContentCheckandUpdateFailed",
        message: "Failed to check and update snapshot content",
    };
    const DELETE: EventTemplate = EventTemplate {
        reason: "SnapshotDeleteError",
        message: "Failed to delete snapshot",
    };

    fn watches(caches: &Caches) -> (Store<Self::Content>, Store<Self::Class>) {
        (caches.contents(), caches.snapshot_classes())
    }

    fn making(
        options: &Options,
        content: &Self::Content,
        inputs: SnapshotInputs<'_>,
    ) -> Option<Self::Making> {
        let prefix = &options.snapshot_name_prefix;
        let length = options.snapshot_name_uuid_length;
        Some(csi::CreateSnapshotRequest {
            source_volume_id: content.spec.source.volume_handle.clone()?,
            name: object_name::name(prefix, inputs.uid, length),
            secrets: inputs.secrets,
            parameters: inputs.parameters,
            ..csi::CreateSnapshotRequest::default()
        })
    }

    async fn make(
        shared: &Shared,
        making: Self::Making,
    ) -> Result<Option<Self::Snapshot>, Failure> {
        let csi = &shared.context.driver.csi;
        let answer = csi.create_snapshot(making, shared.timeout).await?;
        // CreateSnapshot takes a snapshot for one content, so the snapshot is in no group.
        Ok(answer.snapshot.map(|reported| csi::Snapshot {
            group_snapshot_id: String::new(),
            ..reported
        }))
    }

    async fn ask(
        reconciler: &Reconciler<Self>,
        content: &Self::Content,
        handle: &str,
    ) -> Result<Answer<Self::Snapshot>, WorkError> {
        let driver = &reconciler.shared.context.driver;
        let timeout = reconciler.shared.timeout;
        if driver.can(ControllerCapability::ListSnapshots) {
            let request = csi::ListSnapshotsRequest {
                snapshot_id: handle.to_owned(),
                secrets: secrets(reconciler, content).await?,
                ..csi::ListSnapshotsRequest::default()
            };
            let answer = driver.csi.list_snapshots(request, timeout).await?;
            let snapshots = answer
                .entries
                .into_iter()
                .filter_map(|entry| entry.snapshot);
            let mut found = snapshots.filter(|one| one.snapshot_id == handle);
            return Ok(self::answer(found.next()));
        }
        if !driver.can(ControllerCapability::GetSnapshot) {
            return Ok(Answer::Assumed(csi::Snapshot {
                snapshot_id: handle.to_owned(),
                ready_to_use: true,
                // The driver cannot report the creation time, so the time of the first check is
                // used.
                creation_time: Some(SystemTime::now().into()),
                ..csi::Snapshot::default()
            }));
        }
        let request = csi::GetSnapshotRequest {
            snapshot_id: handle.to_owned(),
            secrets: secrets(reconciler, content).await?,
        };
        match driver.csi.get_snapshot(request, timeout).await {
            Ok(answer) => Ok(self::answer(answer.snapshot)),
            Err(failure) if failure.code() == tonic::Code::NotFound => Ok(Answer::Nothing),
            Err(failure) => Err(failure.into()),
        }
    }

    fn deletion(
        _: &Self::Content,
        handle: String,
        secrets: Credentials,
    ) -> Result<Self::Deletion, WorkError> {
        Ok(csi::DeleteSnapshotRequest {
            snapshot_id: handle,
            secrets,
        })
    }

    async fn delete(shared: &Shared, deletion: Self::Deletion) -> Result<(), Failure> {
        let csi = &shared.context.driver.csi;
        csi.delete_snapshot(deletion, shared.timeout).await?;
        Ok(())
    }

    fn news(content: &Self::Content, reported: &Self::Snapshot, _: bool) -> Option<Value> {
        status::of_snapshot(content.status.as_ref(), reported)
    }

    fn cleared() -> Value {
        status::cleared_single()
    }
}

fn answer(snapshot: Option<csi::Snapshot>) -> Answer<csi::Snapshot> {
    snapshot.map_or(Answer::Nothing, Answer::Found)
}

/// The secret for read calls. Members of groups have no class, so the secret that created them is
/// used.
async fn secrets(
    reconciler: &Reconciler<SingleContents>,
    content: &VolumeSnapshotContent,
) -> Result<Credentials, WorkError> {
    let view = content.view();
    if view.is_member || view.group.is_some() {
        Ok(reconciler.secrets(content).await??)
    } else {
        reconciler.asking(content).await
    }
}
