//! Gathers what the steps for a content depend on: its owner, its class and its secrets.

use std::sync::Arc;

use kube::ResourceExt;

use super::content_client::{Part, WorkError};
use super::content_reconciler::{Answer, ContentKind, Reconciler};
use super::decide::Step;
use super::parameters::{self, ParameterError};
use crate::api::secret_template::{self, SnapshotVariables};
use crate::controller::content_owner;
use crate::controller::owner::Ownership;
use crate::secrets::{self, Credentials, SecretError};
use crate::snapshots::content::{Content, SnapshotClass};

impl<K: ContentKind> Reconciler<K> {
    /// True if the content and its class are this driver's, and the content has a source.
    pub(super) fn serves(&self, content: &K::Content) -> bool {
        let driver = &self.shared.context.driver.name;
        let view = content.view();
        let class = view.class.and_then(|name| self.classes.get(name));
        view.driver == driver
            && (view.given.is_some() || !view.volumes.is_empty())
            && class.is_none_or(|class| class.driver() == driver)
    }

    /// Finds the owner of a content. If the caches do not show it, the driver is asked.
    pub(super) async fn owner(
        &self,
        content: &K::Content,
        step: &Step,
    ) -> Result<Ownership, WorkError> {
        let volumes = content.view().volumes;
        if self.shared.part == Part::Unowned {
            let volume = volumes.first().map(String::as_str);
            return Ok(if self.shared.is_unowned(content, step, volume) {
                Ownership::Local
            } else {
                Ownership::Remote
            });
        }
        // The label alone decides about a step without a call to the driver: a group may have
        // volumes of other nodes, so that no node takes it.
        if step.is_harmless() && self.shared.owner(content, None, None) == Ownership::Local {
            return Ok(Ownership::Local);
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
        match content.view().volumes {
            [] => self.cached_owner_of(content, None),
            volumes => {
                let owners = volumes
                    .iter()
                    .map(|volume| self.cached_owner_of(content, Some(volume)));
                content_owner::of_all(&owners.collect::<Vec<_>>())
            }
        }
    }

    /// The owner of the part of a content that comes from one volume.
    fn cached_owner_of(&self, content: &K::Content, volume: Option<&str>) -> Ownership {
        let handle = content.view().snapshot().or(volume);
        self.shared.owner(content, handle, volume)
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

    /// A content's class, if it names one.
    pub(super) fn class(&self, content: &K::Content) -> Result<Option<Arc<K::Class>>, WorkError> {
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
    pub(super) async fn secrets(
        &self,
        content: &K::Content,
    ) -> Result<Result<Credentials, SecretError>, ParameterError> {
        let keys = K::Content::KEYS;
        let secret = parameters::secret_by_annotations(content.annotations(), keys)?;
        Ok(secrets::read(&self.shared.kube, secret.as_ref()).await)
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
