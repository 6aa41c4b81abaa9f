//! Doing what was decided for groups and their contents.

use kube::ResourceExt;
use serde_json::json;

use super::group::{self, Facts, Step};
use super::metrics::{Of, Operation};
use super::names;
use super::snapshot::Failure;
use super::status::StatusChange;
use super::{CONFLICT, Controller, Next, STEPS, Stop, UNTOLD};
use crate::runtime::queue::Outcome;
use crate::runtime::{ApiError, Resource, Watch};
use crate::snapshots::VolumeGroupSnapshotContent;

impl Controller {
    /// Brings a group on.
    pub(super) async fn group(&self, namespace: &str, name: &str) -> Result<Outcome, Stop> {
        for _ in 0..STEPS {
            let Some(group) = self.seen.groups.get_in(namespace, name) else {
                self.members(namespace, name);
                return Ok(Outcome::Done);
            };
            let facts = self.seen.group(&self.kube, group).await?;
            self.measure_group(&facts);
            let step = if names::is_deleting(&*facts.group) {
                group::decide_deletion(&facts)
            } else {
                group::decide(&facts)
            };
            if let Next::End(outcome) = self.take_group(&facts, step).await? {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Again(CONFLICT))
    }

    /// The members of a group that is gone wait for that.
    fn members(&self, namespace: &str, name: &str) {
        for member in self.seen.of_group.get(&format!("{namespace}/{name}")) {
            self.queue.add(super::snapshot_key(&member));
        }
    }

    async fn take_group(&self, facts: &Facts, step: Step) -> Result<Next, Stop> {
        let group = &*facts.group;
        let groups = &self.seen.groups;
        match step {
            Step::Done => return Ok(Next::End(Outcome::Done)),
            Step::Pend(why) => {
                let events = &self.context.events;
                events.warning(group, "SnapshotDeletePending", why);
                return Ok(Next::End(Outcome::Failed));
            }
            Step::Fail(failure) => return self.fail_group(facts, failure).await,
            Step::SetClass(class) => {
                let patch = json!({"spec": {"volumeGroupSnapshotClassName": class}});
                self.merge(groups, group, patch).await?;
            }
            Step::Finalizers(finalizers) => {
                let patch = json!({"metadata": {"finalizers": finalizers}});
                self.merge(groups, group, patch).await?;
            }
            Step::Create(content) => return self.make_group(facts, &content).await,
            Step::Bind(class) => return self.bind_group(facts, class).await,
            Step::CreateMember(member) => {
                return self
                    .made_member(facts, &self.seen.snapshots, &*member)
                    .await;
            }
            Step::CreateMemberContent(content) => {
                return self
                    .made_member(facts, &self.seen.contents, &*content)
                    .await;
            }
            Step::BindMemberContent(content, uid) => {
                let patch = json!({"spec": {"volumeSnapshotRef": {"uid": uid}}});
                self.merge(&self.seen.contents, &*content, patch).await?;
            }
            Step::BindMember(member, content) => {
                let status = json!({"boundVolumeSnapshotContentName": content});
                let snapshots = &self.seen.snapshots;
                self.merge_status(snapshots, &*member, status).await?;
            }
            Step::MemberContentStatus(content, status) => {
                let contents = &self.seen.contents;
                match self.merge_status(contents, &*content, status).await {
                    Err(dropped @ Stop::Dropped { .. }) => {
                        let reason = "GroupSnapshotContentCreationFailed";
                        let failure = Failure::new(reason, dropped.to_string());
                        return self.fail_group(facts, failure).await;
                    }
                    written => written?,
                }
            }
            Step::Status(change) => return self.say_group(facts, change).await,
            Step::Mark => {
                if let Some(content) = &facts.content {
                    let marks = json!({names::GROUP_BEING_DELETED: "yes"});
                    let patch = json!({"metadata": {"annotations": marks}});
                    let contents = &self.seen.group_contents;
                    self.merge(contents, &**content, patch).await?;
                }
            }
            Step::DeleteContent => return self.delete_group_content(facts).await,
            Step::DeleteMembers(members) => {
                for member in members {
                    self.may_write()?;
                    self.kube.delete(&*member).await?;
                }
                return Ok(Next::End(Outcome::Again(CONFLICT)));
            }
        }
        Ok(Next::Look)
    }

    async fn make_group(
        &self,
        facts: &Facts,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<Next, Stop> {
        match self.create(&self.seen.group_contents, content).await {
            Ok(true) => {
                let path = names::path(&*facts.group);
                let message =
                    format!("Waiting for group snapshot {path} to be taken by the CSI driver");
                let events = &self.context.events;
                events.normal(&*facts.group, "CreatingGroupSnapshot", message);
                Ok(Next::Look)
            }
            Ok(false) => Ok(Next::End(Outcome::Again(CONFLICT))),
            Err(Stop::Api(error @ ApiError::Refused { .. })) => {
                let reason = "GroupSnapshotContentCreationFailed";
                let failure = Failure::new(reason, error.to_string());
                self.fail_group(facts, failure).await
            }
            Err(stop) => Err(stop),
        }
    }

    /// Makes a part of a member.
    async fn made_member<K: Resource>(
        &self,
        facts: &Facts,
        watch: &Watch<K>,
        part: &K,
    ) -> Result<Next, Stop> {
        match self.create(watch, part).await {
            Ok(true) => Ok(Next::Look),
            Ok(false) => Ok(Next::End(Outcome::Again(CONFLICT))),
            Err(Stop::Api(error @ ApiError::Refused { .. })) => {
                let reason = "GroupSnapshotContentCreationFailed";
                let failure = Failure::new(reason, error.to_string());
                self.fail_group(facts, failure).await
            }
            Err(stop) => Err(stop),
        }
    }

    async fn bind_group(&self, facts: &Facts, class: Option<String>) -> Result<Next, Stop> {
        let Some(content) = &facts.content else {
            return Ok(Next::Look);
        };
        let mut patch = json!({"spec": {"volumeGroupSnapshotRef": {"uid": facts.group.uid()}}});
        if let Some(class) = class {
            patch["spec"]["volumeGroupSnapshotClassName"] = json!(class);
        }
        let contents = &self.seen.group_contents;
        match self.merge(contents, &**content, patch).await {
            Ok(()) => Ok(Next::Look),
            Err(Stop::Api(error @ ApiError::Refused { .. })) => {
                let failure = Failure::new("GroupSnapshotBindFailed", error.to_string());
                self.fail_group(facts, failure).await
            }
            Err(stop) => Err(stop),
        }
    }

    async fn say_group(&self, facts: &Facts, change: StatusChange) -> Result<Next, Stop> {
        let group = &*facts.group;
        let events = &self.context.events;
        let written = self
            .merge_status(&self.seen.groups, group, change.patch)
            .await;
        if let Err(Stop::Api(error @ ApiError::Refused { .. })) = &written {
            let reason = "GroupSnapshotStatusUpdateFailed";
            events.warning(group, reason, error.to_string());
        }
        written?;
        let (path, uid) = (names::path(group), group.uid().unwrap_or_default());
        if change.taken {
            self.metrics.end(Of::Group, Operation::Create, &uid);
            let message = format!("Group snapshot {path} was taken by the CSI driver");
            events.normal(group, "GroupSnapshotCreated", message);
        }
        if change.ready {
            self.metrics.end(Of::Group, Operation::CreateAndReady, &uid);
            let message = format!("Group snapshot {path} is ready to use");
            events.normal(group, "GroupSnapshotReady", message);
        }
        Ok(Next::Look)
    }

    async fn delete_group_content(&self, facts: &Facts) -> Result<Next, Stop> {
        if let Some(content) = &facts.content {
            self.may_write()?;
            let deleted = self.kube.delete(&**content).await;
            if let Err(error @ ApiError::Refused { .. }) = &deleted {
                let events = &self.context.events;
                let reason = "GroupSnapshotContentObjectDeleteError";
                events.warning(&*facts.group, reason, error.to_string());
            }
            deleted?;
        }
        Ok(Next::End(Outcome::Again(UNTOLD)))
    }

    async fn fail_group(&self, facts: &Facts, failure: Failure) -> Result<Next, Stop> {
        let group = &*facts.group;
        let status = group.status.as_ref();
        let known = status.and_then(|status| status.error.as_ref());
        self.tell_failure(&self.seen.groups, group, known, failure)
            .await
    }

    /// Takes the time of what is going on for a group.
    fn measure_group(&self, facts: &Facts) {
        let group = &*facts.group;
        let uid = group.uid().unwrap_or_default();
        let class = group.spec.volume_group_snapshot_class_name.as_deref();
        let mut classes = facts.classes.iter();
        let class = classes.find(|it| it.metadata.name.as_deref() == class && class.is_some());
        let content = facts.content.as_ref();
        let driver = content.map(|content| content.spec.driver.as_str());
        let driver = driver.or(class.map(|class| class.driver.as_str()));
        let source = &group.spec.source;
        let beforehand = source.volume_group_snapshot_content_name.is_some();
        let begin = |operation| {
            self.metrics
                .begin(Of::Group, operation, &uid, driver, beforehand);
        };
        if names::is_deleting(group) {
            return begin(Operation::Delete);
        }
        let status = group.status.clone().unwrap_or_default();
        if status.ready_to_use == Some(true) {
            return;
        }
        if status.creation_time.is_none() {
            begin(Operation::Create);
        }
        begin(Operation::CreateAndReady);
    }

    /// Holds a group's content for its driver's loop, once it is bound to a group.
    pub(super) async fn group_content(&self, name: &str) -> Result<Outcome, Stop> {
        let Some(content) = self.seen.group_contents.get(name) else {
            return Ok(Outcome::Done);
        };
        let source = &content.spec.source;
        let handles = source.volume_handles.as_deref().unwrap_or_default();
        if handles.is_empty() == source.group_snapshot_handles.is_none() {
            let message = "exactly one of volumeHandles and groupSnapshotHandles must be given";
            let events = &self.context.events;
            events.warning(&*content, "GroupContentValidationError", message);
            return Ok(Outcome::Failed);
        }
        let uid = content.spec.volume_group_snapshot_ref.uid.as_deref();
        if uid.is_none_or(str::is_empty) || names::is_deleting(&*content) {
            return Ok(Outcome::Done);
        }
        if let Some(finalizers) = names::with(&*content, &[names::GROUP_CONTENT_BOUND]) {
            let patch = json!({"metadata": {"finalizers": finalizers}});
            self.merge(&self.seen.group_contents, &*content, patch)
                .await?;
        }
        Ok(Outcome::Done)
    }
}
