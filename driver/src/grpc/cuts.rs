//! Cuts of volumes in use. No RPC carries them: `serve::cuts` serves them on a socket for root
//! alone. They lock volumes and snapshots as RPCs do.

use std::time::Duration;

use futures::StreamExt;
use hostloop_report::cuts::{
    CutList, CutReport, DroppedCuts, KeptCut, MAX_CUTS, MAX_EVERY, MAX_EXPIRE, MIN_EVERY,
    MIN_EXPIRE, TakeCuts,
};
use tokio::time::Instant;
use tonic::Status;

use super::Server;
use super::operation_locks::{Fingerprint, Key, Operation};
use super::pool_threads::{DELETIONS, Lane, Work};
use crate::csi::error::Error as CsiError;
use crate::record::{CutMark, namespace_of, now_ns};
use crate::storage::{
    self, CutError, ExplorationId, Freed, PoolId, SnapshotId, SnapshotRecord, VolumeId,
};

mod bursts;
mod exploration;
#[cfg(test)]
mod tests;

pub(crate) use bursts::Bursts;
pub use exploration::Exploration;

/// The names of this work, for RPCs that find a volume or snapshot in use.
const CHECKING: &str = "a check before cuts";
const TAKING: &str = "a cut of an exploration";
const KEEPING: &str = "the keeping of a cut";
const DROPPING: &str = "the deletion of a cut";

/// How long a cut waits for calls that change its volume, and a deletion for copies of the cut.
const WAIT: Duration = Duration::from_secs(30);

impl Server {
    /// Begins an exploration of a volume that is in use. Only one of a volume is under way.
    pub async fn explore(&self, request: TakeCuts) -> Result<Exploration, Status> {
        if !self.allows_faults() {
            let why = "cuts are faults, which this driver does not serve: start it with \
                       --enable-faults";
            return Err(Status::failed_precondition(why));
        }
        check_bounds(&request).map_err(Status::invalid_argument)?;
        let volume = request.volume.parse::<VolumeId>();
        let volume = volume.map_err(|_| not_an_id("volume", &request.volume, "vol-…"))?;
        let pools = self.pools().clone();
        let lane = Lane::of_ids(&pools, [request.volume.as_str()]);
        let threads = &self.dispatcher.pool_threads;
        let thread = threads.question(&lane, CHECKING).await?;
        let record = self
            .locks()
            .read(thread, move || pools.check_cuts(&volume).map_err(refusal))
            .await?;
        let namespace = namespace_of(&record.parameters).to_owned();
        let expires_ns = expiry(&request);
        let place = self.bursts.begin(volume).ok_or_else(|| {
            let why =
                format!("another exploration of volume {volume} takes cuts: wait for its end");
            Status::aborted(why)
        })?;
        Ok(Exploration {
            server: self.clone(),
            place,
            request,
            namespace,
            expires_ns,
            taken: 0,
            due: Instant::now(),
        })
    }

    /// The cuts of an exploration, or all.
    pub fn list_cuts(&self, exploration: Option<&str>) -> Result<CutList, Status> {
        let exploration = exploration.map(exploration_id).transpose()?;
        let mut cuts = self.pools().cuts();
        cuts.retain(|(cut, _)| exploration.is_none_or(|id| cut.exploration == id));
        let reports = cuts
            .iter()
            .map(|(cut, snapshot)| self.report(cut, snapshot));
        Ok(CutList {
            cuts: reports.collect(),
        })
    }

    fn report(&self, cut: &CutMark, snapshot: &SnapshotRecord) -> CutReport {
        let pools = self.pools();
        CutReport {
            exploration: cut.exploration.to_string(),
            number: cut.number,
            snapshot: snapshot.id.to_string(),
            volume: snapshot.source.to_string(),
            pool: pools.name_of(snapshot.id.pool()).unwrap_or_default(),
            size_bytes: snapshot.size_bytes,
            taken_ns: snapshot.created_ns,
            expires_ns: cut.expires_ns,
            promised_bytes: pools.promised_to(snapshot),
        }
    }

    /// Makes an ordinary snapshot of a cut. Other snapshots stay as they are.
    pub async fn keep_cut(&self, snapshot: &str) -> Result<KeptCut, Status> {
        let id = snapshot.parse::<SnapshotId>();
        let id = id.map_err(|_| not_an_id("snapshot", snapshot, "snap-…"))?;
        let pools = self.pools().clone();
        let kept = self
            .with_snapshot(KEEPING, Work::Change, id, move || pools.keep_cut(&id))
            .await?;
        Ok(KeptCut {
            snapshot: kept.id.to_string(),
            name: kept.name.clone(),
        })
    }

    /// Ends an exploration, and deletes its cuts that are left.
    pub async fn drop_cuts(&self, exploration: &str) -> Result<DroppedCuts, Status> {
        let id = exploration_id(exploration)?;
        self.bursts.end(id).await;
        let (dropped, failed) = self.drop_all(Unwanted::Of(id), None).await;
        match failed {
            Some(why) => Err(why),
            None => Ok(DroppedCuts {
                exploration: exploration.to_owned(),
                dropped,
            }),
        }
    }

    /// Deletes the cuts that have expired, in the pool of a slot: another one may hang. One that can't
    /// be deleted now is tried again later.
    pub async fn drop_expired_cuts(&self, slot: usize) {
        let pool = self.pools().slots().get(slot).and_then(|slot| slot.id);
        if pool.is_none() {
            return;
        }
        let unwanted = Unwanted::ExpiredBy(now_ns());
        let (dropped, failed) = self.drop_all(unwanted, pool).await;
        if dropped > 0 {
            tracing::info!(cuts = dropped, "deleted cuts that have expired");
        }
        if let Some(why) = failed {
            let why = why.message();
            tracing::warn!(why, "a cut that has expired is not deleted yet");
        }
    }

    /// Deletes cuts, several at once, in one pool or in all. Returns how many, and why the first of
    /// the others is not deleted.
    async fn drop_all(&self, unwanted: Unwanted, pool: Option<PoolId>) -> (u32, Option<Status>) {
        let mut cuts = self.pools().cuts();
        cuts.retain(|(cut, snapshot)| {
            unwanted.includes(cut) && pool.is_none_or(|id| snapshot.id.pool() == id)
        });
        // A vector, because a closure in a stream would keep callers from running on another task.
        let deletions: Vec<_> = cuts
            .iter()
            .map(|(_, snapshot)| self.drop_one(snapshot.id, unwanted))
            .collect();
        let mut deletions = futures::stream::iter(deletions).buffer_unordered(DELETIONS);
        let (mut dropped, mut failed) = (0, None);
        while let Some(deletion) = deletions.next().await {
            match deletion {
                Ok(was_there) => dropped += u32::from(was_there),
                Err(why) => failed = failed.or(Some(why)),
            }
        }
        if dropped > 0 {
            self.pools().freed().announce(Freed::Room);
        }
        (dropped, failed)
    }

    /// Deletes a snapshot that is still an unwanted cut. False if it is none, or gone.
    async fn drop_one(&self, id: SnapshotId, unwanted: Unwanted) -> Result<bool, Status> {
        let pools = self.pools().clone();
        self.with_snapshot(DROPPING, Work::Delete, id, move || {
            pools.drop_cut(&id, |cut| unwanted.includes(cut))
        })
        .await
    }

    /// Changes a snapshot under its lock, once copies of it have ended.
    async fn with_snapshot<R: Clone + Send + Sync + 'static>(
        &self,
        method: &'static str,
        work: Work,
        id: SnapshotId,
        change: impl FnOnce() -> storage::Result<R> + Send + 'static,
    ) -> Result<R, Status> {
        let text = id.to_string();
        let pool_threads = self.dispatcher.pool_threads.clone();
        let lane = Lane::of_ids(self.pools(), [text.as_str()]);
        let threads = pool_threads.of(&lane, work);
        let operation = Operation {
            method,
            fingerprint: Fingerprint::of(text.as_bytes()),
            holds: vec![Key::Snapshot(text).changed()],
            wait_limit: WAIT,
            namespace: String::new(),
            long: false,
            grace: None,
            then: None,
        };
        self.locks()
            .run(threads, operation, move || {
                let changed = pool_threads.run(&lane, work, change);
                changed.map_err(CsiError::from)
            })
            .await
    }
}

/// The cuts to delete.
#[derive(Clone, Copy, Debug)]
enum Unwanted {
    /// Those of this exploration.
    Of(ExplorationId),
    /// Those that have expired at this time, in nanoseconds since the epoch.
    ExpiredBy(u64),
}

impl Unwanted {
    fn includes(self, cut: &CutMark) -> bool {
        match self {
            Unwanted::Of(exploration) => cut.exploration == exploration,
            Unwanted::ExpiredBy(now_ns) => cut.has_expired(now_ns),
        }
    }
}

/// When a cut expires that is taken now, in nanoseconds since the epoch.
fn expiry(request: &TakeCuts) -> u64 {
    now_ns().saturating_add(request.expire_after_s * 1_000_000_000)
}

fn exploration_id(text: &str) -> Result<ExplorationId, Status> {
    text.parse()
        .map_err(|_| not_an_id("exploration", text, "exploration-…"))
}

fn not_an_id(noun: &str, text: &str, form: &str) -> Status {
    Status::invalid_argument(format!("{text:?} is not the ID of a {noun} ({form})"))
}

/// Why a burst like this is refused.
fn check_bounds(request: &TakeCuts) -> Result<(), String> {
    let every = Duration::from_millis(request.every_ms);
    let expire_after = Duration::from_secs(request.expire_after_s);
    if !(1..=MAX_CUTS).contains(&request.cuts) {
        return Err(format!(
            "an exploration has 1 to {MAX_CUTS} cuts, not {}",
            request.cuts
        ));
    }
    if !(MIN_EVERY..=MAX_EVERY).contains(&every) {
        return Err(format!(
            "cuts follow each other after {MIN_EVERY:?} to {MAX_EVERY:?}, not {every:?}"
        ));
    }
    if !(MIN_EXPIRE..=MAX_EXPIRE).contains(&expire_after) {
        return Err(format!(
            "cuts expire after {} to {} seconds, not {}",
            MIN_EXPIRE.as_secs(),
            MAX_EXPIRE.as_secs(),
            request.expire_after_s
        ));
    }
    Ok(())
}

fn refusal(error: CutError) -> Status {
    match error {
        CutError::Storage(error) => CsiError::from(error).into(),
        CutError::NotInUse(_) | CutError::NearlyFull(_) => {
            Status::failed_precondition(error.to_string())
        }
    }
}
