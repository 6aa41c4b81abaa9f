//! The bursts of cuts that are under way, one of a volume at once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::storage::{ExplorationId, VolumeId};

/// The bursts under way, by volume.
#[derive(Debug, Default)]
pub(crate) struct Bursts(Mutex<HashMap<VolumeId, Burst>>);

/// A burst under way.
#[derive(Clone, Debug)]
struct Burst {
    exploration: ExplorationId,
    /// Cancelled once no further cut is to be taken.
    stop: CancellationToken,
    /// Cancelled at the end of the burst.
    ended: CancellationToken,
}

/// The place of a burst among those under way. Dropping it ends the burst.
#[derive(Debug)]
pub(super) struct BurstPlace {
    bursts: Arc<Bursts>,
    pub(super) volume: VolumeId,
    burst: Burst,
}

impl Bursts {
    /// Begins a burst. `None` while another one of this volume is under way.
    pub(super) fn begin(self: &Arc<Self>, volume: VolumeId) -> Option<BurstPlace> {
        let burst = Burst {
            exploration: ExplorationId::generate(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        match self.0.lock().entry(volume) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(free) => free.insert(burst.clone()),
        };
        Some(BurstPlace {
            bursts: self.clone(),
            volume,
            burst,
        })
    }

    /// Ends an exploration's burst, if it is under way, and waits for that.
    pub(super) async fn end(&self, exploration: ExplorationId) {
        let Some(burst) = self.burst_of(exploration) else {
            return;
        };
        burst.stop.cancel();
        burst.ended.cancelled().await;
    }

    fn burst_of(&self, exploration: ExplorationId) -> Option<Burst> {
        let bursts = self.0.lock();
        let mut bursts = bursts.values();
        bursts
            .find(|burst| burst.exploration == exploration)
            .cloned()
    }
}

impl BurstPlace {
    pub(super) fn exploration(&self) -> ExplorationId {
        self.burst.exploration
    }

    /// Cancelled once no further cut is to be taken.
    pub(super) fn stop(&self) -> &CancellationToken {
        &self.burst.stop
    }
}

impl Drop for BurstPlace {
    fn drop(&mut self) {
        // A cut that still waits for its turn is not taken.
        self.burst.stop.cancel();
        self.bursts.0.lock().remove(&self.volume);
        self.burst.ended.cancel();
    }
}
