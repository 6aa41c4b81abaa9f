//! Implements [`ContentKind`] for VolumeGroupSnapshotContents.

use hostloop_proto::csi;
use kube::ResourceExt;
use serde_json::Value;

use super::content_client::{EventTemplate, Shared, WorkError};
use super::content_reconciler::{Answer, ContentKind, Reconciler, SnapshotInputs};
use super::parameters::GROUP_GET_SECRET;
use super::{Options, decide, status};
use crate::api::object_name;
use crate::cache::{Caches, Store};
use crate::csi::Failure;
use crate::secrets::Credentials;
use crate::snapshots::content::{Content, GROUP};
use crate::snapshots::{VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};

/// VolumeGroupSnapshotContents.
pub(super) struct GroupContents;

impl ContentKind for GroupContents {
    type Content = VolumeGroupSnapshotContent;
    type Class = VolumeGroupSnapshotClass;
    type Making = csi::CreateVolumeGroupSnapshotRequest;
    type Snapshot = csi::VolumeGroupSnapshot;
    type Deletion = csi::DeleteVolumeGroupSnapshotRequest;

    const QUEUES: (&'static str, &'static str, &'static str) = (
        "snapshotter-groupcontent",
        "snapshotter-stray-groupcontent",
        "snapshotter-groupclass",
    );
    const CALL: &'static str = "CreateVolumeGroupSnapshot";
    const ASKING: &'static str = GROUP_GET_SECRET;
    const CREATE: EventTemplate = EventTemplate {
        reason: GROUP.failed,
        message: "Failed to create group snapshot",
    };
    const CHECK: EventTemplate = EventTemplate {
        reason: "GroupSnapshotContentCheckandUpdateFailed",
        message: "Failed to check and update group snapshot content",
    };
    const DELETE: EventTemplate = EventTemplate {
        reason: "GroupSnapshotDeleteError",
        message: "Failed to delete group snapshot",
    };

    fn watches(caches: &Caches) -> (Store<Self::Content>, Store<Self::Class>) {
        (caches.group_contents(), caches.group_classes())
    }

    fn making(
        options: &Options,
        content: &Self::Content,
        inputs: SnapshotInputs<'_>,
    ) -> Option<Self::Making> {
        let prefix = &options.groupsnapshot_name_prefix;
        let length = options.groupsnapshot_name_uuid_length;
        Some(csi::CreateVolumeGroupSnapshotRequest {
            name: object_name::name(prefix, inputs.uid, length),
            source_volume_ids: content.view().volumes.to_vec(),
            secrets: inputs.secrets,
            parameters: inputs.parameters,
        })
    }

    async fn make(
        shared: &Shared,
        making: Self::Making,
    ) -> Result<Option<Self::Snapshot>, Failure> {
        let csi = &shared.context.driver.csi;
        let answer = csi.create_volume_group_snapshot(making, shared.timeout);
        Ok(answer.await?.group_snapshot)
    }

    async fn ask(
        reconciler: &Reconciler<Self>,
        content: &Self::Content,
        handle: &str,
    ) -> Result<Answer<Self::Snapshot>, WorkError> {
        let request = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: handle.to_owned(),
            snapshot_ids: members_of(content)?,
            secrets: reconciler.asking(content).await?,
        };
        let csi = &reconciler.shared.context.driver.csi;
        let timeout = reconciler.shared.timeout;
        match csi.get_volume_group_snapshot(request, timeout).await {
            Ok(answer) => Ok(answer.group_snapshot.map_or(Answer::Nothing, Answer::Found)),
            Err(failure) if failure.code() == tonic::Code::NotFound => Ok(Answer::Nothing),
            Err(failure) => Err(failure.into()),
        }
    }

    fn deletion(
        content: &Self::Content,
        handle: String,
        secrets: Credentials,
    ) -> Result<Self::Deletion, WorkError> {
        Ok(csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: handle,
            snapshot_ids: members_of(content)?,
            secrets,
        })
    }

    async fn delete(shared: &Shared, deletion: Self::Deletion) -> Result<(), Failure> {
        let csi = &shared.context.driver.csi;
        let timeout = shared.timeout;
        csi.delete_volume_group_snapshot(deletion, timeout).await?;
        Ok(())
    }

    /// If the group was found and not created here, its creator also wrote the contents of its
    /// members.
    fn news(content: &Self::Content, reported: &Self::Snapshot, made: bool) -> Option<Value> {
        let members = if made { &reported.snapshots[..] } else { &[] };
        status::of_group(content.status.as_ref(), reported, members)
    }

    fn cleared() -> Value {
        status::cleared_group()
    }
}

fn members_of(content: &VolumeGroupSnapshotContent) -> Result<Vec<String>, WorkError> {
    let members = decide::members(content);
    if members.is_empty() {
        let content = content.name_any();
        return Err(WorkError::NoMembers { content });
    }
    Ok(members)
}
