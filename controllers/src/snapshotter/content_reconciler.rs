//! Work on contents, the same for those of snapshots and those of groups: [`Kind`] says what is not.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt;
use serde_json::Value;

use super::Options;
use super::content_client::{Complaint, Contents, Part, Shared, WorkError, quiet};
use super::decide::{Content, Step};
use super::names::DELETION_POLICY;
use super::owner::{self, Owner};
use super::parameters;
use crate::api::secret_template::{self, RESERVED, SnapshotVariables};
use crate::runtime::csi::{Call, Class, Failure, class};
use crate::runtime::queue::Outcome;
use crate::runtime::{Caches, Resource, Watch};
use crate::secrets::{self, Credentials};

/// A kind of contents, and how the driver is asked for what they stand for.
pub(super) trait Kind: Sized + Send + Sync + 'static {
    type Content: Content;
    type Class: Resource;
    /// What the driver is asked to take.
    type Making: Send;
    /// What it tells of that.
    type Told: Send + Sync;
    /// What it is asked to delete.
    type Deletion: Send;

    /// The queues of contents: of these loops' own, and of those of nobody.
    const QUEUES: (&'static str, &'static str);
    /// Whether a change is worth a look.
    const MATTERS: fn(&Self::Content, &Self::Content) -> bool;
    /// The word by which parameters name it.
    const WORD: &'static str;
    /// The call by which one is taken.
    const CALL: &'static str;
    /// What classes say the secret for asking by.
    const ASKING: &'static str;
    /// What users are told fails: taking one, asking about one, deleting one.
    const CREATE: Complaint;
    const CHECK: Complaint;
    const DELETE: Complaint;

    /// What there is of it.
    fn watches(caches: &Caches) -> (Watch<Self::Content>, Watch<Self::Class>);
    /// What a content says.
    fn said(content: &Self::Content) -> Said<'_>;
    /// What a class says: whose it is, and its parameters.
    fn class(class: &Self::Class) -> (&str, Option<&BTreeMap<String, String>>);
    /// Whose a content is, as far as the caches say.
    fn owner(shared: &Shared, content: &Self::Content) -> Owner;

    /// What is asked for to make a content's snapshot; `None` if it is of nothing.
    fn making(
        options: &Options,
        content: &Self::Content,
        wanted: Wanted<'_>,
    ) -> Option<Self::Making>;
    /// Asks for it.
    fn make(
        shared: &Shared,
        making: Self::Making,
    ) -> impl Future<Output = Result<Option<Self::Told>, Failure>> + Send;
    /// Asks about the snapshot of this ID.
    fn ask(
        worker: &Worker<Self>,
        content: &Self::Content,
        handle: &str,
    ) -> impl Future<Output = Result<Answer<Self::Told>, WorkError>> + Send;
    /// What is to be deleted.
    fn deletion(
        content: &Self::Content,
        handle: String,
        secrets: Credentials,
    ) -> Result<Self::Deletion, WorkError>;
    /// Has it deleted.
    fn delete(
        shared: &Shared,
        deletion: Self::Deletion,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// What is new for a content's status in what was told; `made` if that was made for it.
    fn news(content: &Self::Content, told: &Self::Told, made: bool) -> Option<Value>;
    /// The status of a content whose snapshot is deleted.
    fn cleared() -> Value;
}

/// What a content says.
pub(super) struct Said<'a> {
    pub(super) driver: &'a str,
    pub(super) class: Option<&'a str>,
    /// The user's object.
    pub(super) user: &'a ObjectReference,
    /// The handles of the volumes it is to be taken of.
    pub(super) volumes: &'a [String],
    /// It is of a snapshot that is there.
    pub(super) taken: bool,
}

/// What goes into the request for a snapshot.
pub(super) struct Wanted<'a> {
    /// Of the user's object.
    pub(super) uid: &'a str,
    pub(super) secrets: Credentials,
    pub(super) parameters: BTreeMap<String, String>,
}

/// What the driver says of a snapshot it is asked about.
pub(super) enum Answer<T> {
    /// This.
    Told(T),
    /// There is none of that ID.
    Nothing,
    /// It can't be asked; this is what the maker of its content says.
    Assumed(T),
}

/// The worker on contents of a kind.
pub(super) struct Worker<K: Kind> {
    pub(super) shared: Shared,
    contents: Contents<K::Content>,
    classes: Watch<K::Class>,
}

impl<K: Kind> Worker<K> {
    /// On what the context has watched.
    pub(super) fn new(shared: Shared) -> Self {
        let (watch, classes) = K::watches(&shared.context.caches);
        let kube = shared.kube.clone();
        Worker {
            contents: Contents { kube, watch },
            classes,
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

    async fn take(&self, content: &K::Content, step: Step) -> Outcome {
        let name = content.name_any();
        let (complaint, result) = match step {
            Step::Rest => return Outcome::Done,
            Step::Settle => {
                return quiet(content, self.contents.settle(content).await.map(|_| ()));
            }
            Step::Release => return quiet(content, self.contents.release(content).await),
            Step::Delete { handle } => return self.delete(content, handle).await,
            Step::Create => {
                let first = !content.has_status();
                let complaint = if first { K::CREATE } else { K::CHECK };
                (complaint, self.create(content).await)
            }
            Step::Check { handle } => (K::CHECK, self.check(content, &handle).await),
        };
        let contents = &self.contents;
        self.shared.end(contents, &name, complaint, result).await
    }

    /// Whether it is this driver's, by its class too, and made of something.
    fn serves(&self, content: &K::Content) -> bool {
        let driver = &self.shared.context.driver.name;
        let said = K::said(content);
        let class = said.class.and_then(|name| self.classes.get(name));
        said.driver == driver
            && (said.taken || !said.volumes.is_empty())
            && class.is_none_or(|class| K::class(&class).0 == driver)
    }

    async fn owner(&self, content: &K::Content, step: &Step) -> Result<Owner, WorkError> {
        let volumes = K::said(content).volumes;
        if self.shared.part == Part::Strays {
            let volume = volumes.first().map(String::as_str);
            return Ok(match self.shared.is_stray(content, step, volume) {
                true => Owner::Here,
                false => Owner::Elsewhere,
            });
        }
        let owner = K::owner(&self.shared, content);
        if owner != Owner::Unknown {
            return Ok(owner);
        }
        if step.is_harmless() && self.shared.context.leader.leads() {
            return Ok(Owner::Here);
        }
        let known = match step {
            Step::Check { handle } | Step::Delete { handle } => {
                matches!(K::ask(self, content, handle).await?, Answer::Told(_))
            }
            Step::Create => self.has_all(volumes).await,
            Step::Rest | Step::Settle | Step::Release => false,
        };
        Ok(if known { Owner::Here } else { Owner::Unknown })
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

    async fn create(&self, content: &K::Content) -> Result<K::Content, WorkError> {
        let making = self.making(content).await?;
        let marked = self.contents.begin(content, self.label(content)).await?;
        let told = match K::make(&self.shared, making).await {
            Ok(told) => told,
            Err(failure) => {
                if class(Call::Snapshot, failure.code()) == Class::Final {
                    self.contents.settle(&marked).await?;
                }
                return Err(failure.into());
            }
        };
        self.shared.context.room.change();
        let told = told.ok_or(WorkError::Empty { call: K::CALL })?;
        let news = |content: &K::Content| K::news(content, &told, true);
        let recorded = self.contents.record(marked, news).await?;
        Ok(self.contents.settle(&recorded).await?)
    }

    async fn check(&self, content: &K::Content, handle: &str) -> Result<K::Content, WorkError> {
        let told = match K::ask(self, content, handle).await? {
            Answer::Told(told) | Answer::Assumed(told) => told,
            Answer::Nothing => {
                let handle = handle.to_owned();
                return Err(WorkError::NoSnapshot { handle });
            }
        };
        let adopted = self.contents.adopt(content, self.label(content)).await?;
        let news = |content: &K::Content| K::news(content, &told, false);
        Ok(self.contents.record(adopted, news).await?)
    }

    async fn delete(&self, content: &K::Content, handle: String) -> Outcome {
        let complain = |message: &str, error| {
            self.shared
                .complain_of_deletion(content, K::DELETE.reason, message, &error)
        };
        let secrets = match self.secrets(content).await {
            Ok(secrets) => secrets,
            Err(error) => return complain("Failed to get snapshot credentials", error),
        };
        let deletion = match K::deletion(content, handle, secrets) {
            Ok(deletion) => deletion,
            Err(error) => return complain(K::DELETE.message, error),
        };
        let adopted = match self.contents.adopt(content, self.label(content)).await {
            Ok(adopted) => adopted,
            Err(error) => return quiet(content, Err(error)),
        };
        if let Err(failure) = K::delete(&self.shared, deletion).await {
            return complain(K::DELETE.message, failure.into());
        }
        self.shared.context.room.change();
        // From here on nobody deletes it again, however the rest ends.
        match self.contents.record(adopted, |_| Some(K::cleared())).await {
            Ok(cleared) => quiet(content, self.contents.release(&cleared).await),
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => complain("Failed to clear content status", error.into()),
        }
    }

    /// Whose a content is to say that it is, if it does not yet.
    fn label(&self, content: &K::Content) -> Option<String> {
        owner::label(&self.shared.context.scope, content.labels())
    }

    async fn making(&self, content: &K::Content) -> Result<K::Making, WorkError> {
        let named = || content.name_any();
        let user = K::said(content).user;
        let class = self.class(content)?;
        let class = class.ok_or_else(|| WorkError::Classless { content: named() })?;
        let unbound = || WorkError::Unbound { content: named() };
        let uid = user.uid.as_deref().filter(|uid| !uid.is_empty());
        let uid = uid.ok_or_else(unbound)?;
        let mut parameters = parameters::for_driver(K::class(&class).1)?;
        // Warn only once: after the first call the content has a status.
        if parameters.contains_key(DELETION_POLICY) && !content.has_status() {
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
                ("/name", user.name.clone()),
                ("/namespace", user.namespace.clone()),
                ("content/name", Some(named())),
            ] {
                let key = format!("{RESERVED}{}{end}", K::WORD);
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
        let Some(name) = K::said(content).class else {
            return Ok(None);
        };
        let missing = || WorkError::NoClass {
            kind: <K::Class as kube::Resource>::kind(&()).into_owned(),
            name: name.to_owned(),
        };
        self.classes.get(name).map(Some).ok_or_else(missing)
    }

    /// For creating and deleting.
    pub(super) async fn secrets(&self, content: &K::Content) -> Result<Credentials, WorkError> {
        let marks = K::Content::MARKS;
        let secret = parameters::secret_by_annotations(content.annotations(), marks)?;
        Ok(secrets::read(&self.shared.kube, secret.as_ref()).await?)
    }

    /// For asking.
    pub(super) async fn asking(&self, content: &K::Content) -> Result<Credentials, WorkError> {
        let class = self.class(content)?;
        let user = K::said(content).user;
        let variables = SnapshotVariables {
            kind: K::WORD,
            content: &content.name_any(),
            namespace: user.namespace.as_deref().unwrap_or_default(),
            name: user.name.as_deref().unwrap_or_default(),
        };
        let parameters = class.as_ref().and_then(|class| K::class(class).1);
        let secret = secret_template::of_snapshot_class(parameters, K::ASKING, variables)?;
        Ok(secrets::read(&self.shared.kube, secret.as_ref()).await?)
    }
}
