//! The driver-side loop of snapshots: what VolumeSnapshotContents and VolumeGroupSnapshotContents
//! ask for is done by the CSI driver, and what came of it is written into their status.
//!
//! The cluster's snapshot-controller makes the contents and binds them to what users ask for; an
//! administrator makes them for snapshots that exist already (*pre-provisioned*).
//!
//! # States of a content
//!
//! | it is | then |
//! |---|---|
//! | made of a volume, and not ready | marked *being created*; CreateSnapshot by the name `snapshot-<UID of the VolumeSnapshot>`, again and again, ever more rarely, until the snapshot is ready; the mark goes as soon as the driver says yes, or no for good |
//! | made of a snapshot, or the member of a group, and not ready | the driver is asked about the snapshot until it is ready; a driver that can't be asked is believed |
//! | annotated as a group's member, without status | left alone: the snapshot-controller is about to say which snapshot it is |
//! | ready | nothing is done, but for a mark that was left behind |
//! | deleted, while marked *being created* | as above: a snapshot that may yet come to be must be known before it can be deleted |
//! | deleted, and *being deleted* (or not bound) | with policy Delete, a known handle and no group: DeleteSnapshot, then the status is cleared; in any case the finalizer is taken off |
//! | failed | `status.error` says why and `readyToUse` is false; an event tells it when it is new; tried again, ever more rarely |
//!
//! Groups go the same way by CreateVolumeGroupSnapshot, GetVolumeGroupSnapshot (for those made
//! beforehand) and DeleteVolumeGroupSnapshot, with all their members' IDs. Their members' contents
//! are made by the snapshot-controller, and are deleted with the group.
//!
//! # The owner of a content
//!
//! Where every node has these loops, the first of these that applies decides which node owns a
//! content:
//! 1. the pools of the handles in it, if the driver lists its pools;
//! 2. the label `snapshot.storage.kubernetes.io/managed-by`, which the owner sets at the first step;
//! 3. the affinity of the source's PersistentVolume;
//! 4. the driver that knows the snapshot.
//!
//! A content without an owner stays, with its finalizer. If no snapshot has to be deleted for it,
//! the leader removes the finalizer.
//!
//! A cluster without the group kinds has no groups, until it has: single snapshots do not wait.

use std::sync::Arc;
use std::time::Duration;

use crate::controller::{Context, Controller};
use crate::runtime::driver::{ControllerCapability, GroupCapability, Service};
use crate::runtime::{Change, Resource, Scope};

mod content_client;
mod content_reconciler;
mod decide;
mod group;
pub(crate) mod names;
mod owner;
mod parameters;
mod single;
mod status;

pub(crate) use owner::{handle_in, handles_in_group, owner};
pub(crate) use status::of_failure as status_of_failure;

use content_client::{Part, Shared};
use content_reconciler::{Kind, Reconciler};
use group::Groups;
use single::Singles;

/// The default number of keys of a kind that are reconciled at once.
const WORKERS: usize = 10;
/// The default time between two resyncs.
const RESYNC: Duration = Duration::from_secs(15 * 60);

/// What only this loop takes from the command line.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Prefix of the names of snapshots.
    #[arg(
        long,
        env = "HOSTLOOP_SNAPSHOT_NAME_PREFIX",
        default_value = "snapshot"
    )]
    pub snapshot_name_prefix: String,
    /// How many characters of the VolumeSnapshot's UID (without dashes) the names have; -1: the
    /// UID as it is.
    #[arg(
        long,
        env = "HOSTLOOP_SNAPSHOT_NAME_UUID_LENGTH",
        default_value_t = -1,
        allow_negative_numbers = true
    )]
    pub snapshot_name_uuid_length: i32,
    /// Prefix of the names of group snapshots.
    #[arg(
        long,
        env = "HOSTLOOP_GROUPSNAPSHOT_NAME_PREFIX",
        default_value = "groupsnapshot"
    )]
    pub groupsnapshot_name_prefix: String,
    /// How many characters of the VolumeGroupSnapshot's UID (without dashes) the names have; -1:
    /// the UID as it is.
    #[arg(
        long,
        env = "HOSTLOOP_GROUPSNAPSHOT_NAME_UUID_LENGTH",
        default_value_t = -1,
        allow_negative_numbers = true
    )]
    pub groupsnapshot_name_uuid_length: i32,
}

/// Why the loop can't run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Names of that length would not tell snapshots apart.
    #[error("--{flag}={length}: a length is at least 1, or -1 for the whole UID")]
    NameLength {
        /// The flag.
        flag: &'static str,
        /// What was given.
        length: i32,
    },
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

    fn snapshot_name_length(&self) -> Option<usize> {
        usize::try_from(self.snapshot_name_uuid_length).ok()
    }

    fn group_name_length(&self) -> Option<usize> {
        usize::try_from(self.groupsnapshot_name_uuid_length).ok()
    }
}

/// Runs the loop until the process stops, for the kinds that the driver serves.
pub async fn run(context: Context, options: Options) -> Result<(), Error> {
    options.check()?;
    run_on(context, options, Part::Own).await;
    Ok(())
}

/// The part of the one that leads, where every node has these loops, with caches of the whole
/// cluster: no node sees contents without a label.
pub(crate) async fn run_for_all(context: Context, options: Options) {
    run_on(context, options, Part::Unowned).await;
}

async fn run_on(context: Context, options: Options, part: Part) {
    let driver = context.driver.clone();
    let groups = driver.serves(Service::GroupControllerService)
        && driver.can_group(GroupCapability::CreateDeleteGetVolumeGroupSnapshot);
    // The members of groups have contents of their own.
    let singles = driver.can(ControllerCapability::CreateDeleteSnapshot) || groups;
    if !singles {
        tracing::info!("the CSI driver takes no snapshots");
    }
    let shared = Shared::new(context.clone(), options, part);
    let on_singles = async {
        if singles {
            run_kind::<Singles>(&context, shared.clone()).await;
        }
    };
    let on_groups = async {
        if groups {
            run_kind::<Groups>(&context, shared.clone()).await;
        }
    };
    // Each waits for its own kinds only.
    tokio::join!(on_singles, on_groups);
    context.stop.cancelled().await;
}

async fn run_kind<K: Kind>(context: &Context, shared: Shared) {
    let (contents, classes) = K::watches(&context.caches);
    let (own, unowned) = K::QUEUES;
    let queue_name = match shared.part {
        Part::Own => own,
        Part::Unowned => unowned,
    };
    let queue = context.queue();
    let period = context.common.resync_period.unwrap_or(RESYNC);
    let (seen, all, with_volumes) = (contents.clone(), contents.clone(), context.clone());
    Controller::new(context, Arc::new(Reconciler::<K>::new(shared)))
        .after(|_| async move {
            tokio::join!(
                seen.synced(),
                classes.synced(),
                volumes_synced(&with_volumes)
            );
        })
        .feed(&contents, &queue, |change| match change {
            Change::Applied { old, new } => {
                let matters = old.as_ref().is_none_or(|old| (K::MATTERS)(old, new));
                matters.then(|| name(new.as_ref()))
            }
            Change::Deleted(_) => None,
        })
        .work(
            queue_name,
            &queue,
            workers(context),
            |this, name: String| async move { this.reconcile(&name).await },
        )
        .resync(period, &queue, move |_| {
            all.all().into_iter().map(|content| name(content.as_ref()))
        })
        .run()
        .await;
}

fn name<K: Resource>(content: &K) -> String {
    content.meta().name.clone().unwrap_or_default()
}

fn workers(context: &Context) -> usize {
    context.common.worker_threads.unwrap_or(WORKERS)
}

/// PersistentVolumes decide who owns a content, if there is more than one process.
async fn volumes_synced(context: &Context) {
    if context.scope != Scope::Cluster {
        context.caches.volumes().synced().await;
    }
}

#[cfg(test)]
mod tests;
