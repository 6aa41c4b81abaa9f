//! One burst of cuts.

use std::time::Duration;

use hostloop_report::cuts::{
    BegunExploration, CutsLine, EndedExploration, TakeCuts, TakenCut as ReportedCut,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::bursts::BurstPlace;
use super::{TAKING, WAIT, expiry};
use crate::grpc::Server;
use crate::grpc::controller::snapshots;
use crate::grpc::operation_locks::{Fingerprint, Key, Operation};
use crate::grpc::pool_threads::Lane;
use crate::kernel;
use crate::record::CutMark;
use crate::storage::{CutError, Error, Pools, TakenCut, VolumeId};

/// Why a burst ends before its last cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BurstEnd {
    /// A word of [`EndedExploration::outcome`].
    pub(super) outcome: &'static str,
    pub(super) why: String,
}

impl BurstEnd {
    fn stopped() -> BurstEnd {
        BurstEnd {
            outcome: "ended",
            why: "no further cuts were wanted, or the driver stops".to_owned(),
        }
    }
}

impl From<CutError> for BurstEnd {
    fn from(error: CutError) -> BurstEnd {
        let outcome = match &error {
            CutError::NotInUse(_) => "not-in-use",
            CutError::NearlyFull(_) => "no-room",
            CutError::Storage(Error::Kernel(kernel::Error::NoSpace { .. })) => "no-room",
            CutError::Storage(error) if error.is_no_room() => "no-room",
            CutError::Storage(Error::NoVolume(_)) => "volume-gone",
            CutError::Storage(_) => "failed",
        };
        BurstEnd {
            outcome,
            why: error.to_string(),
        }
    }
}

impl From<Status> for BurstEnd {
    fn from(status: Status) -> BurstEnd {
        let outcome = match status.code() {
            Code::Aborted => "busy",
            Code::Unavailable => "ended",
            _ => "failed",
        };
        BurstEnd {
            outcome,
            why: status.message().to_owned(),
        }
    }
}

/// A burst of cuts. Dropping it ends the burst.
pub struct Exploration {
    pub(super) server: Server,
    pub(super) place: BurstPlace,
    pub(super) request: TakeCuts,
    pub(super) namespace: String,
    /// When its first cut expires at the earliest.
    pub(super) expires_ns: u64,
    pub(super) taken: u32,
    /// When the next cut is due.
    pub(super) due: Instant,
}

impl Exploration {
    /// Cancel it to take no further cut. One that is being taken is taken.
    pub fn stop(&self) -> CancellationToken {
        self.place.stop().clone()
    }

    /// What is about to be done.
    pub fn begun(&self) -> BegunExploration {
        BegunExploration {
            exploration: self.place.exploration().to_string(),
            volume: self.request.volume.clone(),
            cuts: self.request.cuts,
            every_ms: self.request.every_ms,
            expires_ns: self.expires_ns,
        }
    }

    /// Takes the next cut when it is due, or ends. Call it until it has returned
    /// [`CutsLine::Ended`].
    pub async fn next(&mut self) -> CutsLine {
        if self.taken == self.request.cuts {
            return self.ended(None);
        }
        let wait = tokio::time::sleep_until(self.due);
        let is_due = self.place.stop().run_until_cancelled(wait).await.is_some();
        if !is_due {
            return self.ended(Some(BurstEnd::stopped()));
        }
        let late = self.due.elapsed();
        // A late cut does not make the next one come sooner.
        self.due = Instant::now() + Duration::from_millis(self.request.every_ms);
        let number = self.taken + 1;
        match self.take(number).await {
            Ok(cut) => {
                self.taken = number;
                self.server.dispatcher.calls.count_cut();
                CutsLine::Cut(reported(number, &cut, late))
            }
            Err(end) => self.ended(Some(end)),
        }
    }

    fn ended(&self, end: Option<BurstEnd>) -> CutsLine {
        let complete = EndedExploration::COMPLETE;
        let (exploration, taken) = (self.place.exploration(), self.taken);
        let outcome = end.as_ref().map_or(complete, |end| end.outcome);
        tracing::info!(
            volume = %self.place.volume, %exploration, cuts = taken, outcome,
            "an exploration has taken its cuts"
        );
        CutsLine::Ended(EndedExploration {
            exploration: exploration.to_string(),
            taken,
            outcome: outcome.into(),
            why: end.map(|end| end.why),
        })
    }

    /// Takes a cut under the lock of its volume.
    async fn take(&self, number: u32) -> Result<TakenCut, BurstEnd> {
        let dispatcher = &self.server.dispatcher;
        let mark = CutMark {
            exploration: self.place.exploration(),
            number,
            // A burst may last longer than its cuts are kept.
            expires_ns: expiry(&self.request),
        };
        let name = mark.snapshot_name();
        let volume = &self.request.volume;
        let work = snapshots([volume], &dispatcher.pools);
        let lane = Lane::of_ids(&dispatcher.pools, [volume.as_str()]);
        let threads = dispatcher.pool_threads.of(&lane, work);
        let operation = Operation {
            method: TAKING,
            fingerprint: Fingerprint::of(name.as_bytes()),
            holds: vec![
                Key::SnapshotName(name).changed(),
                Key::Volume(volume.clone()).copied(),
            ],
            wait_limit: WAIT,
            namespace: self.namespace.clone(),
            long: work.is_long(),
            grace: None,
            then: None,
        };
        let (pool_threads, pools) = (dispatcher.pool_threads.clone(), dispatcher.pools.clone());
        let (volume, stop) = (self.place.volume, self.stop());
        let attempt = dispatcher.locks.run(threads, operation, move || {
            let cut = pool_threads.run(&lane, work, || take_unless(&stop, &pools, volume, mark));
            Ok::<_, Status>(cut)
        });
        attempt.await?
    }
}

/// Takes a cut after its turn has come, unless the burst has ended meanwhile.
fn take_unless(
    stop: &CancellationToken,
    pools: &Pools,
    volume: VolumeId,
    mark: CutMark,
) -> Result<TakenCut, BurstEnd> {
    if stop.is_cancelled() {
        return Err(BurstEnd::stopped());
    }
    Ok(pools.take_cut(&volume, mark)?)
}

fn reported(number: u32, cut: &TakenCut, late: Duration) -> ReportedCut {
    ReportedCut {
        number,
        snapshot: cut.record.id.to_string(),
        size_bytes: cut.record.size_bytes,
        monotonic_ns: cut.monotonic_ns,
        taken_ns: cut.record.created_ns,
        clone_ns: u64::try_from(cut.clone.as_nanos()).unwrap_or(u64::MAX),
        late_ms: u64::try_from(late.as_millis()).unwrap_or(u64::MAX),
        promised_bytes: cut.promised_bytes,
    }
}
