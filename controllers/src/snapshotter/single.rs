//! Work on VolumeSnapshotContents.

use std::sync::Arc;

use hostloop_proto::csi;
use kube::ResourceExt;

use super::decide::{Content, Step};
use super::names::{GROUP_MEMBER, RESERVED, SINGLE, snapshot_name};
use super::owner::{self, Owner};
use super::parameters::{self, Credentials, LIST_SECRET, Tokens};
use super::status;
use super::work::{Complaint, Contents, Part, Shared, WorkError, quiet};
use crate::runtime::Watch;
use crate::runtime::csi::{Call, Class, class};
use crate::runtime::driver::ControllerCapability;
use crate::runtime::queue::Outcome;
use crate::snapshots::{VolumeSnapshotClass, VolumeSnapshotContent};

const CREATE: Complaint = Complaint {
    reason: "SnapshotCreationFailed",
    message: "Failed to create snapshot",
};
const CHECK: Complaint = Complaint {
    reason: "SnapshotContentCheckandUpdateFailed",
    message: "Failed to check and update snapshot content",
};
const DELETE: &str = "SnapshotDeleteError";

/// The worker on VolumeSnapshotContents.
pub(super) struct Singles {
    shared: Shared,
    contents: Contents<VolumeSnapshotContent>,
    classes: Watch<VolumeSnapshotClass>,
}

/// What the driver says of a snapshot it is asked about.
enum Told {
    Snapshot(csi::Snapshot),
    /// There is none of that ID.
    Nothing,
    /// It can't be asked.
    CannotTell,
}

impl Singles {
    /// On what the context has watched.
    pub(super) fn new(shared: Shared) -> Self {
        Singles {
            contents: Contents {
                kube: shared.kube.clone(),
                watch: shared.context.caches.contents(),
            },
            classes: shared.context.caches.snapshot_classes(),
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
            // The volume, or the snapshot, may be seen later.
            Ok(Owner::Unknown) => return Outcome::Failed,
            Err(error) => {
                tracing::warn!(content = name, %error, "can't tell whose it is");
                return Outcome::Failed;
            }
        }
        self.take(&content, step).await
    }

    async fn take(&self, content: &VolumeSnapshotContent, step: Step) -> Outcome {
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
                let checked = self.check(content, &handle).await;
                let name = content.name_any();
                self.shared.end(&self.contents, &name, CHECK, checked).await
            }
            Step::Settle => quiet(content, self.contents.settle(content).await.map(|_| ())),
            Step::Delete { handle } => self.delete(content, handle).await,
            Step::Release => quiet(content, self.contents.release(content).await),
        }
    }

    /// Whether it is this driver's, by its class too, and made of something.
    fn serves(&self, content: &VolumeSnapshotContent) -> bool {
        let driver = &self.shared.context.driver.name;
        let source = &content.spec.source;
        let class = content.spec.volume_snapshot_class_name.as_deref();
        content.spec.driver == *driver
            && (source.volume_handle.is_some() || source.snapshot_handle.is_some())
            && class
                .and_then(|name| self.classes.get(name))
                .is_none_or(|class| class.driver == *driver)
    }

    async fn owner(
        &self,
        content: &VolumeSnapshotContent,
        step: &Step,
    ) -> Result<Owner, WorkError> {
        let volume = content.spec.source.volume_handle.as_deref();
        let handle = owner::handle_in(content);
        if self.shared.part == Part::Strays {
            return Ok(match self.shared.is_stray(content, step, volume) {
                true => Owner::Here,
                false => Owner::Elsewhere,
            });
        }
        let owner = self.shared.owner(content, handle, volume);
        if owner != Owner::Unknown {
            return Ok(owner);
        }
        if step.is_harmless() && self.shared.context.leader.leads() {
            return Ok(Owner::Here);
        }
        let known = match step {
            Step::Check { handle } | Step::Delete { handle } => {
                let told = self.ask(content, handle).await?;
                matches!(told, Told::Snapshot(_))
            }
            Step::Create => match volume {
                Some(volume) => self.shared.has_volume(volume).await,
                None => false,
            },
            Step::Rest | Step::Settle | Step::Release => false,
        };
        Ok(if known { Owner::Here } else { Owner::Unknown })
    }

    async fn create(
        &self,
        content: &VolumeSnapshotContent,
    ) -> Result<VolumeSnapshotContent, WorkError> {
        let request = self.request(content).await?;
        let node = owner::label(&self.shared.context.scope, content.labels());
        let marked = self.contents.begin(content, node).await?;
        let csi = &self.shared.context.driver.csi;
        let answer = match csi.create_snapshot(request, self.shared.timeout).await {
            Ok(answer) => answer,
            Err(failure) => {
                if class(Call::Snapshot, failure.code()) == Class::Final {
                    self.contents.settle(&marked).await?;
                }
                return Err(failure.into());
            }
        };
        self.shared.context.room.change();
        let call = "CreateSnapshot";
        let told = answer.snapshot.ok_or(WorkError::Empty { call })?;
        // A snapshot taken for a content of its own is in no group.
        let told = csi::Snapshot {
            group_snapshot_id: String::new(),
            ..told
        };
        let news =
            |content: &VolumeSnapshotContent| status::of_snapshot(content.status.as_ref(), &told);
        let recorded = self.contents.record(marked, news).await?;
        Ok(self.contents.settle(&recorded).await?)
    }

    async fn request(
        &self,
        content: &VolumeSnapshotContent,
    ) -> Result<csi::CreateSnapshotRequest, WorkError> {
        let name = content.name_any();
        let reference = &content.spec.volume_snapshot_ref;
        let class = self.class(content)?.ok_or_else(|| WorkError::Classless {
            content: name.clone(),
        })?;
        let unbound = || WorkError::Unbound {
            content: name.clone(),
        };
        let uid = reference.uid.as_deref().filter(|uid| !uid.is_empty());
        let uid = uid.ok_or_else(unbound)?;
        let volume = content.spec.source.volume_handle.clone();
        let mut parameters = parameters::for_driver(class.parameters.as_ref())?;
        if self.shared.context.common.extra_create_metadata {
            let snapshot = reference.name.clone().unwrap_or_default();
            let namespace = reference.namespace.clone().unwrap_or_default();
            for (key, value) in [
                ("volumesnapshot/name", snapshot),
                ("volumesnapshot/namespace", namespace),
                ("volumesnapshotcontent/name", name.clone()),
            ] {
                parameters.insert(format!("{RESERVED}{key}"), value);
            }
        }
        let options = &self.shared.options;
        Ok(csi::CreateSnapshotRequest {
            source_volume_id: volume.ok_or_else(unbound)?,
            name: snapshot_name(
                &options.snapshot_name_prefix,
                uid,
                options.snapshot_name_length(),
            ),
            secrets: self.secrets(content).await?,
            parameters,
            ..csi::CreateSnapshotRequest::default()
        })
    }

    async fn check(
        &self,
        content: &VolumeSnapshotContent,
        handle: &str,
    ) -> Result<VolumeSnapshotContent, WorkError> {
        let told = match self.ask(content, handle).await? {
            Told::Snapshot(told) => told,
            Told::Nothing => {
                let handle = handle.to_owned();
                return Err(WorkError::NoSnapshot { handle });
            }
            // What can't be asked about is taken to be as its maker says.
            Told::CannotTell => csi::Snapshot {
                snapshot_id: handle.to_owned(),
                ready_to_use: true,
                ..csi::Snapshot::default()
            },
        };
        let node = owner::label(&self.shared.context.scope, content.labels());
        let adopted = self.contents.adopt(content, node).await?;
        let news =
            |content: &VolumeSnapshotContent| status::of_snapshot(content.status.as_ref(), &told);
        Ok(self.contents.record(adopted, news).await?)
    }

    async fn ask(&self, content: &VolumeSnapshotContent, handle: &str) -> Result<Told, WorkError> {
        let driver = &self.shared.context.driver;
        let timeout = self.shared.timeout;
        if driver.can(ControllerCapability::ListSnapshots) {
            let request = csi::ListSnapshotsRequest {
                snapshot_id: handle.to_owned(),
                secrets: self.list_secrets(content).await?,
                ..csi::ListSnapshotsRequest::default()
            };
            let answer = driver.csi.list_snapshots(request, timeout).await?;
            let snapshots = answer
                .entries
                .into_iter()
                .filter_map(|entry| entry.snapshot);
            let found = snapshots.into_iter().find(|one| one.snapshot_id == handle);
            return Ok(found.map_or(Told::Nothing, Told::Snapshot));
        }
        if !driver.can(ControllerCapability::GetSnapshot) {
            return Ok(Told::CannotTell);
        }
        let request = csi::GetSnapshotRequest {
            snapshot_id: handle.to_owned(),
            secrets: self.list_secrets(content).await?,
        };
        match driver.csi.get_snapshot(request, timeout).await {
            Ok(answer) => Ok(answer.snapshot.map_or(Told::Nothing, Told::Snapshot)),
            Err(failure) if failure.code() == tonic::Code::NotFound => Ok(Told::Nothing),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn delete(&self, content: &VolumeSnapshotContent, handle: String) -> Outcome {
        let complain = |message: &str, error| {
            self.shared
                .complain_of_deletion(content, DELETE, message, &error)
        };
        let secrets = match self.secrets(content).await {
            Ok(secrets) => secrets,
            Err(error) => return complain("Failed to get snapshot credentials", error),
        };
        let node = owner::label(&self.shared.context.scope, content.labels());
        let adopted = match self.contents.adopt(content, node).await {
            Ok(adopted) => adopted,
            Err(error) => return quiet(content, Err(error)),
        };
        let request = csi::DeleteSnapshotRequest {
            snapshot_id: handle,
            secrets,
        };
        let csi = &self.shared.context.driver.csi;
        if let Err(failure) = csi.delete_snapshot(request, self.shared.timeout).await {
            return complain("Failed to delete snapshot", failure.into());
        }
        self.shared.context.room.change();
        // From here on nobody deletes it again, however the rest ends.
        let cleared = status::cleared_single();
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
        content: &VolumeSnapshotContent,
    ) -> Result<Option<Arc<VolumeSnapshotClass>>, WorkError> {
        let Some(name) = &content.spec.volume_snapshot_class_name else {
            return Ok(None);
        };
        let missing = || WorkError::NoClass {
            kind: "VolumeSnapshotClass",
            name: name.clone(),
        };
        self.classes.get(name).map(Some).ok_or_else(missing)
    }

    /// For creating and deleting.
    async fn secrets(&self, content: &VolumeSnapshotContent) -> Result<Credentials, WorkError> {
        let secret = parameters::secret_by_annotations(content.annotations(), &SINGLE)?;
        Ok(parameters::read(&self.shared.kube, secret).await?)
    }

    /// For asking. Members of groups have no class; what made them is used for them.
    async fn list_secrets(
        &self,
        content: &VolumeSnapshotContent,
    ) -> Result<Credentials, WorkError> {
        let status = content.status.as_ref();
        let member = content.annotations().contains_key(GROUP_MEMBER)
            || status.is_some_and(|status| status.volume_group_snapshot_handle.is_some());
        if member {
            return self.secrets(content).await;
        }
        let class = self.class(content)?;
        let reference = &content.spec.volume_snapshot_ref;
        let tokens = Tokens {
            kind: "volumesnapshot",
            content: &content.name_any(),
            namespace: reference.namespace.as_deref().unwrap_or_default(),
            name: reference.name.as_deref().unwrap_or_default(),
        };
        let parameters = class.as_ref().and_then(|class| class.parameters.as_ref());
        let secret = parameters::secret_by_class(parameters, LIST_SECRET, tokens)?;
        Ok(parameters::read(&self.shared.kube, secret).await?)
    }
}
