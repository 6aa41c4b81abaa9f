//! The snapshotter carries out the specs of VolumeSnapshotContents and VolumeGroupSnapshotContents
//! with CSI calls, and writes the results to their status.
//!
//! The cluster's snapshot-controller creates the contents and binds them to users' snapshots. An
//! administrator creates contents for existing snapshots (*pre-provisioned*).
//!
//! # States of a content
//!
//! - *Its source is a volume, and it is not ready:* The snapshotter annotates it as *being
//!   created*. It calls CreateSnapshot with the name `snapshot-<UID of the VolumeSnapshot>`, with
//!   backoff, until the snapshot is ready. The annotation goes after success or a final error.
//! - *Its source is a snapshot or it is the member of a group, and it is not ready:* The
//!   snapshotter checks the snapshot in the driver until it is ready. If the driver has no call
//!   for that, the snapshot counts as ready.
//! - *It is annotated as a group's member, and has no status:* The snapshotter waits, because the
//!   snapshot-controller will soon write the snapshot's ID.
//! - *It is ready:* The snapshotter only removes a leftover annotation.
//! - *It is deleted while annotated as being created:* The snapshotter continues to create the
//!   snapshot, because it needs the snapshot's ID to delete it. It does so even if the secret is
//!   missing: a failure that may be due to that is not final. It remembers what it has requested,
//!   because the API server may go back to a backup without the annotation.
//! - *It is deleted, and annotated as being deleted (or not bound):* With the policy Delete, a
//!   known handle and no group, the snapshotter calls DeleteSnapshot and clears the status. In any
//!   case it removes the finalizer.
//! - *It failed:* `status.error` contains the reason and `readyToUse` is false. A new error causes
//!   an event. The snapshotter tries again with backoff.
//!
//! Groups have the same states. Their calls are CreateVolumeGroupSnapshot, GetVolumeGroupSnapshot
//! (for pre-provisioned groups) and DeleteVolumeGroupSnapshot, with all their members' IDs. The
//! snapshot-controller creates the contents of their members. These are deleted with the group.
//!
//! # The owner of a content
//!
//! If every node runs a snapshotter, the first of these that applies decides which node owns a
//! content:
//! 1. the pools of the handles in it, if the driver lists its pools;
//! 2. the label `snapshot.storage.kubernetes.io/managed-by`, which the owner sets at its first
//!    step;
//! 3. the affinity of the source's PersistentVolume;
//! 4. the driver that knows the snapshot.
//!
//! A content without an owner stays, with its finalizer. If no snapshot has to be deleted for it,
//! the leader removes the finalizer.
//!
//! If a cluster lacks the group kinds, single snapshots do not wait for them.

use std::sync::Arc;
use std::time::Duration;

use crate::api::scope::Scope;
use crate::cache::Change;
use crate::controller::workers::WORKERS;
use crate::controller::{Context, Controller, ObjectKey};

mod apply;
mod content_client;
mod content_reconciler;
mod decide;
mod gather;
mod group;
mod parameters;
mod requested_contents;
mod single;
mod status;

pub(crate) use status::of_failure as status_of_failure;

use content_client::{Part, Shared};
use content_reconciler::{ContentKind, Reconciler};
use group::GroupContents;
use single::SingleContents;

/// Default interval between resyncs.
const RESYNC: Duration = Duration::from_secs(15 * 60);

/// The snapshotter's flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Snapshotter")]
#[group(skip)]
pub struct Options {
    /// Prefix of snapshot names
    #[arg(long, value_name = "PREFIX", default_value = "snapshot")]
    pub snapshot_name_prefix: String,
    /// Number of characters of the VolumeSnapshot's UID (without dashes) in snapshot names; -1
    /// means the whole UID with dashes
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub snapshot_name_uuid_length: i32,
    /// Prefix of group snapshot names
    #[arg(long, value_name = "PREFIX", default_value = "groupsnapshot")]
    pub groupsnapshot_name_prefix: String,
    /// Number of characters of the VolumeGroupSnapshot's UID (without dashes) in group snapshot
    /// names; -1 means the whole UID with dashes
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub groupsnapshot_name_uuid_length: i32,
}

/// The reason why the snapshotter cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Names with this length of UID would not be unique.
    #[error("--{flag}={length}: a length is at least 1, or -1 for the whole UID")]
    NameLength { flag: &'static str, length: i32 },
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (flag, length) in [
            ("snapshot-name-uuid-length", self.snapshot_name_uuid_length),
            (
                "groupsnapshot-name-uuid-length",
                self.groupsnapshot_name_uuid_length,
            ),
        ] {
            if length != -1 && length < 1 {
                return Err(Error::NameLength { flag, length });
            }
        }
        Ok(())
    }
}

/// Runs the snapshotter until the process stops, for the kinds that the driver supports.
pub async fn run(context: Context, options: Options) -> Result<(), Error> {
    options.check()?;
    run_on(context, options, Part::Own).await;
    Ok(())
}

/// Runs the leader's part if every node runs a snapshotter. It uses caches of the whole cluster,
/// because no node sees contents without a label.
pub(crate) async fn run_for_all(context: Context, options: Options) {
    run_on(context, options, Part::Unowned).await;
}

async fn run_on(context: Context, options: Options, part: Part) {
    let (singles, groups) = (
        context.driver.takes_snapshots(),
        context.driver.takes_groups(),
    );
    if !singles {
        tracing::info!("the CSI driver takes no snapshots");
    }
    let shared = Shared::new(context.clone(), options, part);
    let on_singles = async {
        if singles {
            run_kind::<SingleContents>(&context, shared.clone()).await;
        }
    };
    let on_groups = async {
        if groups {
            run_kind::<GroupContents>(&context, shared.clone()).await;
        }
    };
    // Each kind waits only for its own caches.
    tokio::join!(on_singles, on_groups);
    context.stop.cancelled().await;
}

async fn run_kind<K: ContentKind>(context: &Context, shared: Shared) {
    let (contents, classes) = K::watches(&context.caches);
    let (own, unowned, of_classes) = K::QUEUES;
    let queue_name = match shared.part {
        Part::Own => own,
        Part::Unowned => unowned,
    };
    let queue = context.queue();
    let period = context.common.resync_period.unwrap_or(RESYNC);
    let workers = context.common.workers(WORKERS);
    let (seen, all, with_volumes) = (contents.clone(), contents.clone(), context.clone());
    let listed = classes.clone();
    Controller::new(context, Arc::new(Reconciler::<K>::new(shared, &queue)))
        .after(|_| async move {
            tokio::join!(
                seen.synced(),
                listed.synced(),
                volumes_synced(&with_volumes)
            );
        })
        .wake(
            of_classes,
            &classes,
            Duration::ZERO,
            Change::name_applied,
            &queue,
            |this, class| this.of_class(class),
        )
        .feed(&contents, &queue, |change| match change {
            Change::Applied { old, new } => {
                let matters = old
                    .as_ref()
                    .is_none_or(|old| decide::matters(&**old, &**new));
                matters.then(|| ObjectKey::of_content(&**new))
            }
            Change::Deleted(_) => None,
        })
        .work(
            queue_name,
            &queue,
            workers,
            |this, key: ObjectKey| async move { this.reconcile(key.name()).await },
        )
        .resync(period, &queue, move |_| {
            all.all()
                .into_iter()
                .map(|content| ObjectKey::of_content(&*content))
        })
        .run()
        .await;
}

/// If there is more than one process, PersistentVolumes decide who owns a content.
async fn volumes_synced(context: &Context) {
    if context.scope != Scope::Cluster {
        context.caches.volumes().synced().await;
    }
}

#[cfg(test)]
mod tests;
