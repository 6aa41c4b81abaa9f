//! The page caches of read-only devices. Each block device has its own, which repeats what was read
//! before, although the volume has been written to since. So a look each second compares how much
//! was written, and drops what a read-only device has cached.

use std::collections::BTreeMap;

use super::Node;
use crate::kernel;

/// What the last look found, by the minor of the read-only device.
#[derive(Debug, Default)]
pub struct ReadOnlyCaches(BTreeMap<u32, Cache>);

/// The cache of one read-only device at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cache {
    /// Writes that the device below had completed.
    writes: u64,
    /// True if these are more than at the look before.
    written: bool,
}

impl Cache {
    /// What this look finds.
    fn after(last: Option<Cache>, writes: u64) -> Cache {
        Cache {
            writes,
            written: last.is_none_or(|last| last.writes != writes),
        }
    }

    /// True if this look drops the cache: after a write, and once more at the next look. A read may
    /// begin before a write and put old data into the cache after the first drop.
    fn is_stale(self, last: Option<Cache>) -> bool {
        self.written || last.is_some_and(|last| last.written)
    }
}

impl Node {
    /// Drops what read-only devices have cached from before the last writes. It asks no disk. A
    /// page that a process has mapped (mmap) stays.
    pub fn drop_stale_caches(&self, caches: &mut ReadOnlyCaches) {
        let mut found = BTreeMap::new();
        for (minor, below) in self.read_only_devices() {
            let last = caches.0.get(&minor).copied();
            match self.drop_stale_cache(below, minor, last) {
                Ok(cache) => found.extend(cache.map(|cache| (minor, cache))),
                Err(error) => {
                    tracing::debug!(minor, below, %error, "a read-only device keeps its cache");
                }
            }
        }
        caches.0 = found;
    }

    /// The read-only devices of targets on this node, each with the device below.
    fn read_only_devices(&self) -> Vec<(u32, u32)> {
        let mut devices = self.bound_pins().unwrap_or_else(|error| {
            tracing::debug!(%error, "read-only devices of volumes that nodes share keep their caches");
            Vec::new()
        });
        for volume in self.pools.volumes() {
            let Some(stage) = &volume.stage else { continue };
            let below = stage.minor.into_iter();
            devices.extend(below.flat_map(|below| {
                let over = stage.read_only_loops.values();
                over.map(move |minor| (*minor, below))
            }));
        }
        devices
    }

    fn drop_stale_cache(
        &self,
        below: u32,
        minor: u32,
        last: Option<Cache>,
    ) -> kernel::Result<Option<Cache>> {
        let kernel = self.pools.kernel();
        let now = Cache::after(last, kernel.loop_writes(below)?);
        if now.is_stale(last) {
            let device = kernel.loop_info(minor)?;
            let Some(device) = device.filter(|l| l.read_only && l.below() == Some(below)) else {
                return Ok(None);
            };
            kernel.loop_drop_cache(&kernel.loop_reopen(&device)?)?;
        }
        Ok(Some(now))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::the_first_look(&[5], &[true])]
    #[case::nothing_written(&[5, 5, 5, 5], &[true, true, false, false])]
    #[case::written_once(&[5, 5, 5, 6, 6, 6], &[true, true, false, true, true, false])]
    #[case::written_always(&[5, 6, 7, 8], &[true; 4])]
    #[case::another_device_below(&[5, 5, 5, 0, 0, 0], &[true, true, false, true, true, false])]
    fn a_cache_is_dropped_after_a_write_and_once_more(
        #[case] writes: &[u64],
        #[case] expected: &[bool],
    ) {
        let mut last = None;
        let mut dropped = Vec::new();
        for writes in writes {
            let now = Cache::after(last, *writes);
            dropped.push(now.is_stale(last));
            last = Some(now);
        }
        assert_eq!(dropped, expected);
    }
}
