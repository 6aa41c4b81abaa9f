//! Takes the steps for a content: the CSI calls, and the writes before and after them.

use kube::ResourceExt;

use super::content_client::{WorkError, quiet};
use super::content_reconciler::{Answer, ContentKind, Reconciler, SnapshotInputs};
use super::decide::Step;
use super::parameters::{self, DELETION_POLICY};
use crate::api::constants::RESERVED;
use crate::controller::{ObjectKey, content_owner};
use crate::csi::{CallKind, ErrorClass, Freed, class};
use crate::queue::Outcome;
use crate::secrets::{self, LackedSecret};
use crate::snapshots::content::{Content, SnapshotClass};

impl<K: ContentKind> Reconciler<K> {
    /// Takes a step for a content.
    pub(super) async fn apply(&self, content: &K::Content, step: Step) -> Outcome {
        let name = content.name_any();
        let (template, result) = match step {
            Step::Rest => return Outcome::Done,
            Step::Settle => {
                return quiet(content, self.contents.settle(content).await.map(|_| ()));
            }
            Step::Release => return quiet(content, self.contents.release(content).await),
            Step::Delete { handle } => return self.delete(content, handle).await,
            Step::Create => {
                let first = !content.view().has_status;
                let template = if first { K::CREATE } else { K::CHECK };
                (template, self.create(content).await)
            }
            Step::Check { handle } => (K::CHECK, self.check(content, &handle).await),
        };
        let contents = &self.contents;
        self.shared.end(contents, &name, template, result).await
    }

    async fn create(&self, content: &K::Content) -> Result<K::Content, WorkError> {
        let (making, lacked) = self.making(content).await?;
        let marked = self.contents.begin(content, self.label(content)).await?;
        let key = ObjectKey::of_content(content);
        self.for_room.enter(&key, Freed::Room);
        let watch = &self.contents.watch;
        self.contents
            .requested
            .add(content, |name| watch.get(name).is_some());
        let made = K::make(&self.shared, making).await;
        if !matches!(&made, Err(failure) if failure.lacks_room()) {
            self.for_room.leave(&key);
        }
        let reported = match made {
            Ok(reported) => reported,
            Err(failure) => {
                if class(CallKind::Snapshot, &failure) == ErrorClass::Final {
                    if let Some(missing) = lacked.explains(&failure) {
                        return Err(missing.into());
                    }
                    self.contents.requested.remove(key.name());
                    self.contents.settle(&marked).await?;
                }
                return Err(failure.into());
            }
        };
        self.shared.context.room.change();
        let reported = reported.ok_or(WorkError::Empty { call: K::CALL })?;
        let recorded = self
            .contents
            .record(marked, |content: &K::Content| {
                K::news(content, &reported, true)
            })
            .await?;
        self.contents.requested.remove(key.name());
        Ok(self.contents.settle(&recorded).await?)
    }

    async fn check(&self, content: &K::Content, handle: &str) -> Result<K::Content, WorkError> {
        let reported = match K::ask(self, content, handle).await? {
            Answer::Found(reported) | Answer::Assumed(reported) => reported,
            Answer::Nothing => {
                let handle = handle.to_owned();
                return Err(WorkError::NoSnapshot { handle });
            }
        };
        let adopted = self.contents.adopt(content, self.label(content)).await?;
        Ok(self
            .contents
            .record(adopted, |content: &K::Content| {
                K::news(content, &reported, false)
            })
            .await?)
    }

    async fn delete(&self, content: &K::Content, handle: String) -> Outcome {
        let secrets = match self.secrets(content).await {
            Ok(read) => secrets::unless_missing(read).map_err(WorkError::from),
            Err(error) => Err(error.into()),
        };
        let secrets = match secrets {
            Ok(secrets) => secrets,
            Err(error) => {
                return self.failed_deletion(content, "Failed to get snapshot credentials", &error);
            }
        };
        let due = Step::Delete {
            handle: handle.clone(),
        };
        let deletion = match K::deletion(content, handle, secrets) {
            Ok(deletion) => deletion,
            Err(error) => return self.failed_deletion(content, K::DELETE.message, &error),
        };
        let adopted = match self.contents.adopt(content, self.label(content)).await {
            Ok(adopted) => adopted,
            Err(error) => return quiet(content, Err(error)),
        };
        // The data does not come back. The cache will show what has become of the content.
        match self.contents.is_due(content, &due).await {
            Ok(true) => {}
            Ok(false) => return Outcome::Failed,
            Err(error) => return quiet(content, Err(error)),
        }
        if let Err(failure) = K::delete(&self.shared, deletion).await {
            return self.failed_deletion(content, K::DELETE.message, &WorkError::from(failure));
        }
        self.shared.context.room_freed();
        // Once the status is cleared, the snapshot is not deleted again.
        match self.contents.record(adopted, |_| Some(K::cleared())).await {
            Ok(cleared) => quiet(content, self.contents.release(&cleared).await),
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => self.failed_deletion(
                content,
                "Failed to clear content status",
                &WorkError::from(error),
            ),
        }
    }

    fn failed_deletion(&self, content: &K::Content, message: &str, error: &WorkError) -> Outcome {
        self.shared
            .report_deletion(content, K::DELETE.reason, message, error)
    }

    /// The node to label a content with, if it has no such label.
    fn label(&self, content: &K::Content) -> Option<String> {
        content_owner::label(&self.shared.context.scope, content.labels())
    }

    /// Builds the request for a snapshot. That of an unwanted content may lack its secret, to find
    /// the snapshot of an earlier call.
    async fn making(&self, content: &K::Content) -> Result<(K::Making, LackedSecret), WorkError> {
        let view = content.view();
        let class = self.class(content)?;
        let class = class.ok_or_else(|| WorkError::Classless {
            content: content.name_any(),
        })?;
        let uid = view.user_uid().ok_or_else(|| WorkError::Unbound {
            content: content.name_any(),
        })?;
        let mut parameters = parameters::for_driver(class.parameters())?;
        // Warn only once: after the first call the content has a status.
        if parameters.contains_key(DELETION_POLICY) && !view.has_status {
            let message = format!(
                "{} {} has the parameter deletionPolicy, which is only passed on to the driver: \
                 the field deletionPolicy decides what becomes of the snapshot",
                <K::Class as kube::Resource>::kind(&()),
                class.name_any()
            );
            let events = &self.shared.context.events;
            events.warning(content, "MisplacedDeletionPolicy", message);
        }
        if self.shared.context.common.extra_create_metadata {
            for (end, value) in [
                ("/name", view.user.name.clone()),
                ("/namespace", view.user.namespace.clone()),
                ("content/name", Some(content.name_any())),
            ] {
                let key = format!("{RESERVED}{}{end}", K::Content::KEYS.word);
                parameters.insert(key, value.unwrap_or_default());
            }
        }
        let read = self.secrets(content).await?;
        let (secrets, lacked) = secrets::unless_unwanted(read, content.is_unwanted())?;
        let inputs = SnapshotInputs {
            uid,
            secrets,
            parameters,
        };
        let making = K::making(&self.shared.options, content, inputs);
        let making = making.ok_or_else(|| WorkError::Unbound {
            content: content.name_any(),
        })?;
        Ok((making, lacked))
    }
}
