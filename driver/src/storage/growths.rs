//! Growths of filesystems: those under way, and why the last one of a volume failed.
//!
//! Health asks here: while a call grows a filesystem, its size says nothing.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::VolumeId;

/// What is known of a volume's growth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GrowthState {
    under_way: bool,
    failed: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Growths(Mutex<BTreeMap<VolumeId, GrowthState>>);

/// A call that attaches, grows and mounts a volume. Calls of one volume never run at once.
#[derive(Debug)]
pub(crate) struct OngoingGrowth<'a> {
    all: &'a Growths,
    volume: VolumeId,
}

impl Growths {
    /// Begins a call that may grow a volume. Call it before the volume's device grows, or before
    /// its filesystem is mounted.
    pub(crate) fn begin(&self, volume: VolumeId) -> OngoingGrowth<'_> {
        self.0.lock().entry(volume).or_default().under_way = true;
        OngoingGrowth { all: self, volume }
    }

    /// True if a call may be growing the volume. If it is false, a device that was seen larger
    /// before has its filesystem grown by now, or its growth has failed.
    pub(crate) fn is_under_way(&self, volume: VolumeId) -> bool {
        self.0
            .lock()
            .get(&volume)
            .is_some_and(|state| state.under_way)
    }

    /// Why the last growth of a volume failed in this process.
    pub(crate) fn failure(&self, volume: VolumeId) -> Option<String> {
        self.0.lock().get(&volume)?.failed.clone()
    }

    /// Notes how a growth ended.
    pub(crate) fn ended(&self, volume: VolumeId, failed: Option<String>) {
        if let Some(state) = self.0.lock().get_mut(&volume) {
            state.failed = failed;
        }
    }

    /// Drops what is known of a deleted volume.
    pub(crate) fn forget(&self, volume: VolumeId) {
        self.0.lock().remove(&volume);
    }
}

impl Drop for OngoingGrowth<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(state) = all.get_mut(&self.volume) {
            state.under_way = false;
            if state.failed.is_none() {
                all.remove(&self.volume);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::PoolId;

    #[test]
    fn a_failure_is_known_until_the_next_success() {
        let growths = Growths::default();
        let volume = VolumeId::generate(PoolId::generate());
        let call = growths.begin(volume);
        assert!(growths.is_under_way(volume));
        growths.ended(volume, Some("no".to_owned()));
        drop(call);
        assert!(!growths.is_under_way(volume));
        assert_eq!(growths.failure(volume).as_deref(), Some("no"));

        drop(growths.begin(volume));
        assert_eq!(
            growths.failure(volume).as_deref(),
            Some("no"),
            "nothing was tried"
        );
        let call = growths.begin(volume);
        growths.ended(volume, None);
        drop(call);
        assert_eq!(growths.failure(volume), None);
        assert!(growths.0.into_inner().is_empty());
    }
}
