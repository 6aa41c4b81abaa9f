//! Work on VolumeGroupSnapshotContents.

use std::sync::Arc;

use hostloop_proto::csi;
use kube::ResourceExt;

use super::decide::{self, Content, Step};
use super::names::{GROUP, RESERVED, snapshot_name};
use super::owner::{self, Owner};
use super::parameters::{self, Credentials, GROUP_GET_SECRET, Tokens};
use super::status;
use super::work::{Complaint, Contents, Part, Shared, WorkError, quiet};
use crate::runtime::Watch;
use crate::runtime::csi::{Call, Class, class};
use crate::runtime::queue::Outcome;
use crate::snapshots::{VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};

const CREATE: Complaint = Complaint {
    reason: "GroupSnapshotCreationFailed",
    message: "Failed to create group snapshot",
};
const CHECK: Complaint = Complaint {
    reason: "GroupSnapshotContentCheckandUpdateFailed",
    message: "Failed to check and update group snapshot content",
};
const DELETE: &str = "GroupSnapshotDeleteError";

/// The worker on VolumeGroupSnapshotContents.
pub(super) struct Groups {
    shared: Shared,
    contents: Contents<VolumeGroupSnapshotContent>,
    classes: Watch<VolumeGroupSnapshotClass>,
}

impl Groups {
    /// On what the context has watched.
    pub(super) fn new(shared: Shared) -> Self {
        Groups {
            contents: Contents {
                kube: shared.kube.clone(),
                watch: shared.context.caches.group_contents(),
            },
            classes: shared.context.caches.group_classes(),
            shared,
        }
    }

    /// Brings one content a step on.
    pub(super) async fn sync(&self, name: &str) -> Outcome {
        let Some(content) = self.contents.watch.get(name) else {
            return Outcome::Done;
        };
        if !self.serves(&content) {
            return Outcome::Done;
        }
        let step = content.step();
        if step == Step::Rest {
            return Outcome::Done;
        }
        match self.owner(&content, &step).await {
            Ok(Owner::Here) => {}
            Ok(Owner::Elsewhere) => return Outcome::Done,
            // Its volumes, or the snapshot, may be seen later.
            Ok(Owner::Unknown) => return Outcome::Failed,
            Err(error) => {
                tracing::warn!(content = name, %error, "can't tell whose it is");
                return Outcome::Failed;
            }
        }
        self.take(&content, step).await
    }

    async fn take(&self, content: &VolumeGroupSnapshotContent, step: Step) -> Outcome {
        let first = content.status.is_none();
        match step {
            Step::Rest => Outcome::Done,
            Step::Create => {
                let complaint = if first { CREATE } else { CHECK };
                let made = self.create(content).await;
                let name = content.name_any();
                self.shared
                    .end(&self.contents, &name, complaint, made)
                    .await
            }
            Step::Check { handle } => {
                let checked = self.check(content, handle).await;
                let name = content.name_any();
                self.shared.end(&self.contents, &name, CHECK, checked).await
            }
            Step::Settle => quiet(content, self.contents.settle(content).await.map(|_| ())),
            Step::Delete { handle } => self.delete(content, handle).await,
            Step::Release => quiet(content, self.contents.release(content).await),
        }
    }

    /// Whether it is this driver's, by its class too, and made of something.
    fn serves(&self, content: &VolumeGroupSnapshotContent) -> bool {
        let driver = &self.shared.context.driver.name;
        let source = &content.spec.source;
        let class = content.spec.volume_group_snapshot_class_name.as_deref();
        content.spec.driver == *driver
            && (!volumes(content).is_empty() || source.group_snapshot_handles.is_some())
            && class
                .and_then(|name| self.classes.get(name))
                .is_none_or(|class| class.driver == *driver)
    }

    /// A group is where all of its volumes are. If they are on several nodes it is nobody's: the
    /// leader, who sees them all, says that it can't be.
    async fn owner(
        &self,
        content: &VolumeGroupSnapshotContent,
        step: &Step,
    ) -> Result<Owner, WorkError> {
        if self.shared.part == Part::Strays {
            let volume = volumes(content).first().map(String::as_str);
            return Ok(match self.shared.is_stray(content, step, volume) {
                true => Owner::Here,
                false => Owner::Elsewhere,
            });
        }
        let owner = self.owner_of_all(content);
        if owner != Owner::Unknown {
            return Ok(owner);
        }
        if step.is_harmless() && self.shared.context.leader.leads() {
            return Ok(Owner::Here);
        }
        let known = match step {
            Step::Check { handle } | Step::Delete { handle } => {
                self.ask(content, handle).await?.is_some()
            }
            Step::Create => self.has_all(volumes(content)).await,
            Step::Rest | Step::Settle | Step::Release => false,
        };
        Ok(if known { Owner::Here } else { Owner::Unknown })
    }

    /// Whose a group is by its handle, its label, and else by the PersistentVolumes of all it is
    /// made from.
    fn owner_of_all(&self, content: &VolumeGroupSnapshotContent) -> Owner {
        let made = owner::handle_of_group(content);
        let of = |volume| self.shared.owner(content, made.or(volume), volume);
        let volumes = volumes(content);
        if volumes.is_empty() {
            return of(None);
        }
        let owners: Vec<Owner> = volumes.iter().map(|volume| of(Some(volume))).collect();
        owner::of_all(&owners)
    }

    /// Whether the driver is sure to have all of these volumes.
    async fn has_all(&self, volumes: &[String]) -> bool {
        for volume in volumes {
            if !self.shared.has_volume(volume).await {
                return false;
            }
        }
        !volumes.is_empty()
    }

    async fn create(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<VolumeGroupSnapshotContent, WorkError> {
        let request = self.request(content).await?;
        let node = owner::label(&self.shared.context.scope, content.labels());
        let marked = self.contents.begin(content, node).await?;
        let csi = &self.shared.context.driver.csi;
        let timeout = self.shared.timeout;
        let answer = match csi.create_volume_group_snapshot(request, timeout).await {
            Ok(answer) => answer,
            Err(failure) => {
                if class(Call::Snapshot, failure.code()) == Class::Final {
                    self.contents.settle(&marked).await?;
                }
                return Err(failure.into());
            }
        };
        self.shared.context.room.change();
        let call = "CreateVolumeGroupSnapshot";
        let told = answer.group_snapshot.ok_or(WorkError::Empty { call })?;
        let news = |content: &VolumeGroupSnapshotContent| {
            status::of_group(content.status.as_ref(), &told, &told.snapshots)
        };
        let recorded = self.contents.record(marked, news).await?;
        Ok(self.contents.settle(&recorded).await?)
    }

    async fn request(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<csi::CreateVolumeGroupSnapshotRequest, WorkError> {
        let name = content.name_any();
        let reference = &content.spec.volume_group_snapshot_ref;
        let class = self.class(content)?.ok_or_else(|| WorkError::Classless {
            content: name.clone(),
        })?;
        let uid = reference.uid.as_deref().filter(|uid| !uid.is_empty());
        let uid = uid.ok_or_else(|| WorkError::Unbound {
            content: name.clone(),
        })?;
        let mut parameters = parameters::for_driver(class.parameters.as_ref())?;
        if self.shared.context.common.extra_create_metadata {
            let group = reference.name.clone().unwrap_or_default();
            let namespace = reference.namespace.clone().unwrap_or_default();
            for (key, value) in [
                ("volumegroupsnapshot/name", group),
                ("volumegroupsnapshot/namespace", namespace),
                ("volumegroupsnapshotcontent/name", name),
            ] {
                parameters.insert(format!("{RESERVED}{key}"), value);
            }
        }
        let options = &self.shared.options;
        Ok(csi::CreateVolumeGroupSnapshotRequest {
            name: snapshot_name(
                &options.groupsnapshot_name_prefix,
                uid,
                options.group_name_length(),
            ),
            source_volume_ids: volumes(content).to_vec(),
            secrets: self.secrets(content).await?,
            parameters,
        })
    }

    async fn check(
        &self,
        content: &VolumeGroupSnapshotContent,
        handle: String,
    ) -> Result<VolumeGroupSnapshotContent, WorkError> {
        let told = self.ask(content, &handle).await?;
        let told = told.ok_or(WorkError::NoSnapshot { handle })?;
        let node = owner::label(&self.shared.context.scope, content.labels());
        let adopted = self.contents.adopt(content, node).await?;
        // Who made the content made its members' contents, too.
        let news = |content: &VolumeGroupSnapshotContent| {
            status::of_group(content.status.as_ref(), &told, &[])
        };
        Ok(self.contents.record(adopted, news).await?)
    }

    async fn ask(
        &self,
        content: &VolumeGroupSnapshotContent,
        handle: &str,
    ) -> Result<Option<csi::VolumeGroupSnapshot>, WorkError> {
        let request = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: handle.to_owned(),
            snapshot_ids: members_of(content)?,
            secrets: self.get_secrets(content).await?,
        };
        let csi = &self.shared.context.driver.csi;
        let timeout = self.shared.timeout;
        match csi.get_volume_group_snapshot(request, timeout).await {
            Ok(answer) => Ok(answer.group_snapshot),
            Err(failure) if failure.code() == tonic::Code::NotFound => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn delete(&self, content: &VolumeGroupSnapshotContent, handle: String) -> Outcome {
        let complain = |message: &str, error| {
            self.shared
                .complain_of_deletion(content, DELETE, message, &error)
        };
        let secrets = match self.secrets(content).await {
            Ok(secrets) => secrets,
            Err(error) => return complain("Failed to get snapshot credentials", error),
        };
        let members = match members_of(content) {
            Ok(members) => members,
            Err(error) => return complain("Failed to delete group snapshot", error),
        };
        let node = owner::label(&self.shared.context.scope, content.labels());
        let adopted = match self.contents.adopt(content, node).await {
            Ok(adopted) => adopted,
            Err(error) => return quiet(content, Err(error)),
        };
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: handle,
            snapshot_ids: members,
            secrets,
        };
        let csi = &self.shared.context.driver.csi;
        let timeout = self.shared.timeout;
        if let Err(failure) = csi.delete_volume_group_snapshot(request, timeout).await {
            return complain("Failed to delete group snapshot", failure.into());
        }
        self.shared.context.room.change();
        // From here on nobody deletes it again, however the rest ends.
        let cleared = status::cleared_group();
        match self
            .contents
            .record(adopted, |_| Some(cleared.clone()))
            .await
        {
            Ok(cleared) => quiet(content, self.contents.release(&cleared).await),
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => complain("Failed to clear content status", error.into()),
        }
    }

    fn class(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<Option<Arc<VolumeGroupSnapshotClass>>, WorkError> {
        let Some(name) = &content.spec.volume_group_snapshot_class_name else {
            return Ok(None);
        };
        let missing = || WorkError::NoClass {
            kind: "VolumeGroupSnapshotClass",
            name: name.clone(),
        };
        self.classes.get(name).map(Some).ok_or_else(missing)
    }

    /// For creating and deleting.
    async fn secrets(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<Credentials, WorkError> {
        let secret = parameters::secret_by_annotations(content.annotations(), &GROUP)?;
        Ok(parameters::read(&self.shared.kube, secret).await?)
    }

    /// For asking.
    async fn get_secrets(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<Credentials, WorkError> {
        let class = self.class(content)?;
        let reference = &content.spec.volume_group_snapshot_ref;
        let tokens = Tokens {
            kind: "volumegroupsnapshot",
            content: &content.name_any(),
            namespace: reference.namespace.as_deref().unwrap_or_default(),
            name: reference.name.as_deref().unwrap_or_default(),
        };
        let parameters = class.as_ref().and_then(|class| class.parameters.as_ref());
        let secret = parameters::secret_by_class(parameters, GROUP_GET_SECRET, tokens)?;
        Ok(parameters::read(&self.shared.kube, secret).await?)
    }
}

fn volumes(content: &VolumeGroupSnapshotContent) -> &[String] {
    let handles = content.spec.source.volume_handles.as_deref();
    handles.unwrap_or_default()
}

fn members_of(content: &VolumeGroupSnapshotContent) -> Result<Vec<String>, WorkError> {
    let members = decide::members(content);
    if members.is_empty() {
        let content = content.name_any();
        return Err(WorkError::NoMembers { content });
    }
    Ok(members)
}
