//! Reconciles contents of both kinds. [`Kind`] contains the differences between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use serde_json::Value;

use super::Options;
use super::content_client::{ContentClient, EventTemplate, Part, Shared, WorkError, quiet};
use super::decide::{Step, decide};
use super::parameters::{self, DELETION_POLICY};
use crate::api::names::RESERVED;
use crate::api::secret_template::{self, SnapshotVariables};
use crate::cache::{Caches, Index, Store};
use crate::controller::owner::Ownership;
use crate::controller::{ObjectKey, content_owner};
use crate::csi::{Call, Class, Failure, Freed, Waiters, class};
use crate::queue::{Outcome, Queue};
use crate::secrets::{self, Credentials};
use crate::snapshots::content::{Class as SnapshotClass, Content};

/// A kind of contents, and the CSI calls for it.
pub(super) trait Kind: Sized + Send + Sync + 'static {
    type Content: Content;
    type Class: SnapshotClass;
    /// The request that takes a snapshot.
    type Making: Send;
    /// The driver's answer.
    type Snapshot: Send + Sync;
    /// The request that deletes a snapshot.
    type Deletion: Send;

    /// The names of the queues: for this process's contents, for those without an owner, and for
    /// classes.
    const QUEUES: (&'static str, &'static str, &'static str);
    /// The CSI call that takes a snapshot.
    const CALL: &'static str;
    /// The class parameter for the secret of read calls.
    const ASKING: &'static str;
    /// The events for failures to take, check and delete a snapshot.
    const CREATE: EventTemplate;
    const CHECK: EventTemplate;
    const DELETE: EventTemplate;

    fn watches(caches: &Caches) -> (Store<Self::Content>, Store<Self::Class>);

    /// The request for a content's snapshot; `None` if the content names no volume.
    fn making(
        options: &Options,
        content: &Self::Content,
        wanted: Wanted<'_>,
    ) -> Option<Self::Making>;
    /// Sends that request.
    fn make(
        shared: &Shared,
        making: Self::Making,
    ) -> impl Future<Output = Result<Option<Self::Snapshot>, Failure>> + Send;
    /// Asks about the snapshot of this ID.
    fn ask(
        reconciler: &Reconciler<Self>,
        content: &Self::Content,
        handle: &str,
    ) -> impl Future<Output = Result<Answer<Self::Snapshot>, WorkError>> + Send;
    /// The request that deletes a content's snapshot.
    fn deletion(
        content: &Self::Content,
        handle: String,
        secrets: Credentials,
    ) -> Result<Self::Deletion, WorkError>;
    /// Sends that request.
    fn delete(
        shared: &Shared,
        deletion: Self::Deletion,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The change of a content's status after the driver's answer. `made` is true if the snapshot
    /// was taken for this content.
    fn news(content: &Self::Content, reported: &Self::Snapshot, made: bool) -> Option<Value>;
    /// The status patch for a content after its snapshot is deleted.
    fn cleared() -> Value;
}

/// Inputs of the request for a snapshot.
pub(super) struct Wanted<'a> {
    /// The UID of the VolumeSnapshot or VolumeGroupSnapshot.
    pub(super) uid: &'a str,
    pub(super) secrets: Credentials,
    pub(super) parameters: BTreeMap<String, String>,
}

/// The driver's answer about one snapshot.
pub(super) enum Answer<T> {
    Found(T),
    /// The driver has no snapshot of that ID.
    Nothing,
    /// The driver has no call to check it, so the content is assumed to be right.
    Assumed(T),
}

/// Reconciles the contents of one kind.
pub(super) struct Reconciler<K: Kind> {
    pub(super) shared: Shared,
    contents: ContentClient<K::Content>,
    classes: Store<K::Class>,
    /// Contents that wait for room in a pool.
    pub(super) for_room: Waiters<ObjectKey>,
    /// Contents that are not ready, by class.
    by_class: Index<K::Content>,
}

impl<K: Kind> Reconciler<K> {
    /// Creates a reconciler of the keys in a queue.
    pub(super) fn new(shared: Shared, queue: &Queue<ObjectKey>) -> Self {
        let (watch, classes) = K::watches(&shared.context.caches);
        let kube = shared.kube.clone();
        let for_room = Waiters::queued(&shared.context.freed, queue);
        let by_class = watch.index(class_of_unready);
        Reconciler {
            contents: ContentClient { kube, watch },
            classes,
            for_room,
            by_class,
            shared,
        }
    }

    /// The contents that may wait for a class.
    pub(super) fn of_class(&self, class: &str) -> impl Iterator<Item = ObjectKey> + use<K> {
        let contents = self.by_class.get(class).into_iter();
        contents.map(|content| ObjectKey::of_content(&*content))
    }

    /// Takes the next step for one content.
    pub(super) async fn reconcile(&self, name: &str) -> Outcome {
        let Some(content) = self.contents.watch.get(name) else {
            self.for_room.leave(name);
            return Outcome::Done;
        };
        if !self.serves(&content) {
            return Outcome::Done;
        }
        let step = decide(&*content);
        if step == Step::Rest {
            return Outcome::Done;
        }
        match self.owner(&content, &step).await {
            Ok(Ownership::Local) => {}
            Ok(Ownership::Remote) => return Outcome::Done,
            // The caches may show its volumes later, or the driver its snapshot.
            Ok(Ownership::Unknown) => return Outcome::Failed,
            Err(error) => {
                tracing::warn!(content = name, %error, "cannot find the owner of a content");
                return Outcome::Failed;
            }
        }
        self.apply(&content, step).await
    }

    async fn apply(&self, content: &K::Content, step: Step) -> Outcome {
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

    /// True if the content and its class are this driver's, and the content has a source.
    fn serves(&self, content: &K::Content) -> bool {
        let driver = &self.shared.context.driver.name;
        let view = content.view();
        let class = view.class.and_then(|name| self.classes.get(name));
        view.driver == driver
            && (view.given.is_some() || !view.volumes.is_empty())
            && class.is_none_or(|class| class.driver() == driver)
    }

    async fn owner(&self, content: &K::Content, step: &Step) -> Result<Ownership, WorkError> {
        let volumes = content.view().volumes;
        if self.shared.part == Part::Unowned {
            let volume = volumes.first().map(String::as_str);
            return Ok(if self.shared.is_unowned(content, step, volume) {
                Ownership::Local
            } else {
                Ownership::Remote
            });
        }
        let owner = self.cached_owner(content);
        if owner != Ownership::Unknown {
            return Ok(owner);
        }
        if step.is_harmless() && self.shared.context.leader.leads() {
            return Ok(Ownership::Local);
        }
        let known = match step {
            Step::Check { handle } | Step::Delete { handle } => {
                matches!(K::ask(self, content, handle).await?, Answer::Found(_))
            }
            Step::Create => self.has_all(volumes).await,
            Step::Rest | Step::Settle | Step::Release => false,
        };
        Ok(if known {
            Ownership::Local
        } else {
            Ownership::Unknown
        })
    }

    /// The owner of a content, by the caches alone: the handle and the label decide, or else the
    /// PersistentVolumes of all source volumes. A group is on the node of all its volumes. If they
    /// are on several nodes, the group has no owner, and the leader reports that.
    fn cached_owner(&self, content: &K::Content) -> Ownership {
        let view = content.view();
        let of = |volume| {
            let handle = view.snapshot().or(volume);
            self.shared.owner(content, handle, volume)
        };
        let owners = view.volumes.iter().map(|volume| of(Some(volume)));
        match view.volumes {
            [] => of(None),
            _ => content_owner::of_all(&owners.collect::<Vec<_>>()),
        }
    }

    /// True if the driver confirms that it has all of these volumes.
    async fn has_all(&self, volumes: &[String]) -> bool {
        for volume in volumes {
            let has = self
                .shared
                .context
                .driver_has(volume, self.shared.timeout)
                .await;
            if !matches!(has, Ok(Some(true))) {
                return false;
            }
        }
        !volumes.is_empty()
    }

    async fn create(&self, content: &K::Content) -> Result<K::Content, WorkError> {
        let making = self.making(content).await?;
        let marked = self.contents.begin(content, self.label(content)).await?;
        let key = ObjectKey::of_content(content);
        self.for_room.enter(&key, Freed::Room);
        let made = K::make(&self.shared, making).await;
        if !matches!(&made, Err(failure) if failure.lacks_room()) {
            self.for_room.leave(&key);
        }
        let reported = match made {
            Ok(reported) => reported,
            Err(failure) => {
                if class(Call::Snapshot, &failure) == Class::Final {
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
        let report = |message: &str, error| {
            self.shared
                .report_deletion(content, K::DELETE.reason, message, &error)
        };
        let secrets = match self.secrets(content).await {
            Err(WorkError::Secret(error)) => {
                secrets::unless_missing(Err(error)).map_err(WorkError::from)
            }
            read => read,
        };
        let secrets = match secrets {
            Ok(secrets) => secrets,
            Err(error) => return report("Failed to get snapshot credentials", error),
        };
        let deletion = match K::deletion(content, handle, secrets) {
            Ok(deletion) => deletion,
            Err(error) => return report(K::DELETE.message, error),
        };
        let adopted = match self.contents.adopt(content, self.label(content)).await {
            Ok(adopted) => adopted,
            Err(error) => return quiet(content, Err(error)),
        };
        if let Err(failure) = K::delete(&self.shared, deletion).await {
            return report(K::DELETE.message, failure.into());
        }
        self.shared.context.room_freed();
        // Once the status is cleared, the snapshot is not deleted again.
        match self.contents.record(adopted, |_| Some(K::cleared())).await {
            Ok(cleared) => quiet(content, self.contents.release(&cleared).await),
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => report("Failed to clear content status", error.into()),
        }
    }

    /// The node to label a content with, if it has no such label.
    fn label(&self, content: &K::Content) -> Option<String> {
        content_owner::label(&self.shared.context.scope, content.labels())
    }

    async fn making(&self, content: &K::Content) -> Result<K::Making, WorkError> {
        let named = || content.name_any();
        let view = content.view();
        let class = self.class(content)?;
        let class = class.ok_or_else(|| WorkError::Classless { content: named() })?;
        let unbound = || WorkError::Unbound { content: named() };
        let uid = view.user_uid().ok_or_else(unbound)?;
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
                ("content/name", Some(named())),
            ] {
                let key = format!("{RESERVED}{}{end}", K::Content::KEYS.word);
                parameters.insert(key, value.unwrap_or_default());
            }
        }
        let wanted = Wanted {
            uid,
            secrets: self.secrets(content).await?,
            parameters,
        };
        K::making(&self.shared.options, content, wanted).ok_or_else(unbound)
    }

    /// A content's class, if it names one.
    fn class(&self, content: &K::Content) -> Result<Option<Arc<K::Class>>, WorkError> {
        let Some(name) = content.view().class else {
            return Ok(None);
        };
        self.classes
            .get(name)
            .map(Some)
            .ok_or_else(|| WorkError::NoClass {
                kind: <K::Class as kube::Resource>::kind(&()).into_owned(),
                name: name.to_owned(),
            })
    }

    /// The secret for create and delete calls.
    pub(super) async fn secrets(&self, content: &K::Content) -> Result<Credentials, WorkError> {
        let keys = K::Content::KEYS;
        let secret = parameters::secret_by_annotations(content.annotations(), keys)?;
        Ok(secrets::read(&self.shared.kube, secret.as_ref()).await?)
    }

    /// The secret for read calls.
    pub(super) async fn asking(&self, content: &K::Content) -> Result<Credentials, WorkError> {
        let class = self.class(content)?;
        let user = content.view().user;
        let variables = SnapshotVariables {
            kind: K::Content::KEYS.word,
            content: &content.name_any(),
            namespace: user.namespace.as_deref().unwrap_or_default(),
            name: user.name.as_deref().unwrap_or_default(),
        };
        let parameters = class.as_ref().and_then(|class| class.parameters());
        let secret = secret_template::of_snapshot_class(parameters, K::ASKING, variables)?;
        Ok(secrets::read(&self.shared.kube, secret.as_ref()).await?)
    }
}

/// The index key of a content that is not ready: its class.
fn class_of_unready<K: Content>(content: &K) -> Vec<String> {
    let view = content.view();
    let class = view.class.filter(|_| !view.is_ready());
    class.map(str::to_owned).into_iter().collect()
}
