//! Deletes contents of snapshots that are gone before them: a user removed the finalizers.
//!
//! That a snapshot is missing does not suffice. An administrator may have copied the contents of another
//! cluster, and deleting them would delete the data. So this process must have seen the snapshot, or have
//! marked the content when the snapshot was deleted. And the API server must answer, to a list and
//! not from a cache, that the snapshot does not exist.
//!
//! A content may come after the end of its snapshot, if a write took long. So the process remembers the
//! snapshots that it saw go.
//!
//! A content that keeps its data, or for which no snapshot was begun, is not deleted here. But someone may
//! delete it by hand, and the snapshotter lets no bound content go without the mark. Then the API server's
//! answer suffices.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::kind::SnapshotKind;
use super::{ReconcileError, SnapshotController, SnapshotKey};
use crate::client::ApiError;
use crate::controller::ObjectKey;
use crate::controller::finalizers::{self, LetGo};
use crate::queue::Outcome;
use crate::snapshots::DeletionPolicy;
use crate::snapshots::content::Content;

/// The keys of contents that may have been made for a snapshot which is not in the cache any more.
pub(super) fn keys<K: SnapshotKind>(snapshot: &ObjectMeta) -> impl Iterator<Item = SnapshotKey> {
    let contents = K::made_contents(snapshot).into_iter();
    contents.filter_map(|content| {
        let content = ObjectKey::new(snapshot.namespace.as_deref(), &content);
        Some(K::orphan_key(content, snapshot.uid.clone()?))
    })
}

impl SnapshotController {
    /// Marks the content of a snapshot with this UID that was seen and is gone. Its deletion follows,
    /// also by another process: the mark shows that the snapshot was seen.
    pub(super) async fn orphan<K: SnapshotKind>(
        &self,
        name: &str,
        uid: &str,
    ) -> Result<Outcome, ReconcileError> {
        let (_, contents, _) = K::watches(&self.watches);
        let content = contents.get(name);
        let Some(content) = content.filter(|it| it.view().user_uid() == Some(uid)) else {
            return Ok(Outcome::Done);
        };
        self.mark_orphan::<K>(&content, true).await?;
        self.delete_orphan::<K>(name).await
    }

    /// Marks a content if it needs that and has no snapshot. `was_seen`: this process saw the
    /// snapshot.
    pub(super) async fn mark_orphan<K: SnapshotKind>(
        &self,
        content: &K::Content,
        was_seen: bool,
    ) -> Result<(), ReconcileError> {
        if needs_mark(content, was_seen) && self.lacks_snapshot::<K>(content).await? {
            let (_, contents, _) = K::watches(&self.watches);
            self.mark(contents, content).await?;
        }
        Ok(())
    }

    /// Lets a snapshot go that is being deleted and is too large for the caches. Its content follows.
    /// One that does not exist has been deleted: not every name of what they leave out is known.
    pub(super) async fn let_go<K: SnapshotKind>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Outcome, ReconcileError> {
        self.may_write()?;
        match finalizers::let_go::<K::Snapshot>(&self.kube, namespace, name, K::FINALIZERS).await? {
            LetGo::NotThere => K::deleted(self, namespace, name),
            LetGo::Stays => {}
            LetGo::Deleted(snapshot) => {
                self.gone.note(snapshot.uid.as_deref().unwrap_or_default());
                self.queue.add_all(keys::<K>(&snapshot));
            }
        }
        Ok(Outcome::Done)
    }

    /// Deletes a marked content without a snapshot.
    pub(super) async fn delete_orphan<K: SnapshotKind>(
        &self,
        name: &str,
    ) -> Result<Outcome, ReconcileError> {
        let (_, contents, _) = K::watches(&self.watches);
        let marked = contents
            .get(name)
            .filter(|content| may_be_orphan(&**content) && is_marked(&**content));
        let Some(content) = marked else {
            return Ok(Outcome::Done);
        };
        if !self.lacks_snapshot::<K>(&content).await? {
            return Ok(Outcome::Done);
        }
        tracing::info!(
            content = name,
            "the snapshot is gone without its content, which is deleted"
        );
        self.may_write()?;
        self.kube.delete(&*content).await?;
        Ok(Outcome::Done)
    }

    /// True if the API server has no snapshot with the UID in a content's reference. This asks for
    /// a list: a missing snapshot gives an empty one, but a kind that is not served gives an error,
    /// where a GET answers "not found" to both. A list has the UID of a snapshot that is too large
    /// for the caches, too.
    async fn lacks_snapshot<K: SnapshotKind>(
        &self,
        content: &K::Content,
    ) -> Result<bool, ApiError> {
        let user = content.view().user;
        let (Some(namespace), Some(name)) = (&user.namespace, &user.name) else {
            return Ok(false);
        };
        let mut lacks = true;
        let field = format!("metadata.name={name}");
        self.kube
            .list_in_by_field(namespace, &field, |snapshot: K::Snapshot| {
                lacks &= snapshot
                    .uid()
                    .is_some_and(|uid| Some(&uid) != user.uid.as_ref());
                lacks
            })
            .await?;
        Ok(lacks)
    }
}

/// True if a content is to be marked once its snapshot is gone. `was_seen`: this process saw the
/// snapshot. Of a content that keeps its data, or never had any, the mark only lets the finalizer go.
fn needs_mark<C: Content>(content: &C, was_seen: bool) -> bool {
    let view = content.view();
    let deletes_data = view.policy == DeletionPolicy::Delete;
    let is_due = (deletes_data && was_seen && view.given.is_none())
        || (content.is_deleting() && (!deletes_data || !content.has_begun()));
    is_due && view.user_uid().is_some() && !is_marked(content)
}

/// True if a content was made for a snapshot and is to be deleted with it.
fn may_be_orphan<C: Content>(content: &C) -> bool {
    let view = content.view();
    view.given.is_none()
        && view.user_uid().is_some()
        && view.policy == DeletionPolicy::Delete
        && !content.is_deleting()
}

fn is_marked<C: Content>(content: &C) -> bool {
    content.annotations().contains_key(C::KEYS.being_deleted)
}
