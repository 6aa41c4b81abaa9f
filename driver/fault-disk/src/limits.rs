//! The limits of a slow disk.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::Operation;
use crate::{Error, Result};

/// How much a disk may do ahead of its limit after it was idle. It makes up for the time that an
/// operation takes by itself, and is 5 % of a measurement of a second.
const BURST: Duration = Duration::from_millis(50);

/// Limits of a disk by the second. `None` means no limit. A flush has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub riops: Option<u64>,
    /// Writes and discards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wiops: Option<u64>,
    /// Bytes read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rbps: Option<u64>,
    /// Bytes written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wbps: Option<u64>,
}

impl Limits {
    /// Refuses limits with which all that the kernel has under way would take more than about 15
    /// seconds. A disk that hangs blocks sync(2) of the whole node.
    pub fn check(&self) -> Result<()> {
        const LEAST: u64 = 10;
        const LEAST_BYTES: u64 = 1 << 20;
        let least = [
            ("riops", self.riops, LEAST),
            ("wiops", self.wiops, LEAST),
            ("rbps", self.rbps, LEAST_BYTES),
            ("wbps", self.wbps, LEAST_BYTES),
        ];
        for (field, limit, least) in least {
            if let Some(limit) = limit.filter(|limit| *limit < least) {
                let reason = format!("{limit} a second is below the least limit, {least}");
                return Err(Error::invalid(field, reason));
            }
        }
        Ok(())
    }
}

/// Operations under a limit, one after the other at its rate.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// When the last one ends.
    ends: Duration,
}

impl Queue {
    /// When an operation of so many units ends that comes now.
    fn admit(&mut self, now: Duration, units: u64, per_second: u64) -> Duration {
        let nanos = u128::from(units) * 1_000_000_000 / u128::from(per_second.max(1));
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.ends = self
            .ends
            .max(now.saturating_sub(BURST))
            .saturating_add(takes);
        self.ends
    }
}

/// The operations of a disk under its limits.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    reads: Queue,
    writes: Queue,
    read_bytes: Queue,
    written_bytes: Queue,
}

impl Queues {
    /// When an operation may end that comes now. Both times are since the disk was made.
    pub(crate) fn admit(
        &mut self,
        limits: &Limits,
        operation: Operation,
        bytes: u64,
        now: Duration,
    ) -> Duration {
        let (count, rate) = match operation {
            Operation::Read => (
                limits.riops.map(|limit| (&mut self.reads, limit)),
                limits.rbps.map(|limit| (&mut self.read_bytes, limit)),
            ),
            Operation::Write => (
                limits.wiops.map(|limit| (&mut self.writes, limit)),
                limits.wbps.map(|limit| (&mut self.written_bytes, limit)),
            ),
            // It moves no bytes.
            Operation::Discard => (limits.wiops.map(|limit| (&mut self.writes, limit)), None),
            Operation::Flush => (None, None),
        };
        let by_count = count.map_or(now, |(queue, limit)| queue.admit(now, 1, limit));
        let by_rate = rate.map_or(now, |(queue, limit)| queue.admit(now, bytes, limit));
        now.max(by_count).max(by_rate)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Operation::*;
    use super::*;

    fn limits(riops: u64, wiops: u64, rbps: u64, wbps: u64) -> Limits {
        fn some(limit: u64) -> Option<u64> {
            (limit > 0).then_some(limit)
        }
        Limits {
            riops: some(riops),
            wiops: some(wiops),
            rbps: some(rbps),
            wbps: some(wbps),
        }
    }

    /// The time that 1,000 operations take which come one after the other, each after this time.
    #[rstest]
    #[case::reads(limits(100, 0, 0, 0), Read, 4096, 0, 10_000)]
    #[case::reads_that_come_late(limits(100, 0, 0, 0), Read, 4096, 9, 10_000)]
    #[case::fewer_than_the_limit(limits(100, 0, 0, 0), Read, 4096, 20, 20_000)]
    #[case::writes_are_no_reads(limits(100, 0, 0, 0), Write, 4096, 0, 0)]
    #[case::writes(limits(0, 500, 0, 0), Write, 4096, 0, 2000)]
    #[case::discards_are_writes(limits(0, 500, 0, 0), Discard, 1 << 30, 0, 2000)]
    #[case::bytes(limits(0, 0, 0, 4_096_000), Write, 4096, 0, 1000)]
    #[case::bytes_of_reads(limits(0, 0, 8_192_000, 1), Read, 4096, 0, 500)]
    #[case::the_lower_of_two(limits(0, 100, 0, 4_096_000), Write, 4096, 0, 10_000)]
    #[case::bytes_of_discards(limits(0, 0, 0, 65_536), Discard, 4096, 0, 0)]
    #[case::flushes(limits(1, 1, 65_536, 65_536), Flush, 0, 0, 0)]
    fn a_thousand_operations(
        #[case] limits: Limits,
        #[case] operation: Operation,
        #[case] bytes: u64,
        #[case] after_ms: u64,
        #[case] expected_ms: u64,
    ) {
        let begin = Duration::from_secs(5);
        let mut queues = Queues::default();
        let mut now = begin;
        for _ in 0..1000 {
            let own = now + Duration::from_millis(after_ms);
            now = queues.admit(&limits, operation, bytes, now).max(own);
        }
        let took = (now - begin).as_millis();
        let expected = u128::from(expected_ms);
        assert!(
            took <= expected && took + 60 >= expected,
            "{took} ms, not {expected} ms"
        );
    }

    #[rstest]
    #[case(limits(0, 0, 0, 0), None)]
    #[case(limits(10, 10, 1 << 20, 1 << 20), None)]
    #[case(limits(9, 10, 1 << 20, 1 << 20), Some("riops"))]
    #[case(limits(10, 10, (1 << 20) - 1, 1 << 20), Some("rbps"))]
    #[case(Limits { riops: Some(0), ..Limits::default() }, Some("riops"))]
    fn limits_that_stop_a_disk_are_refused(#[case] limits: Limits, #[case] field: Option<&str>) {
        let refused = limits.check().err().map(|e| e.to_string());
        assert_eq!(
            refused.as_deref().and_then(|text| text.split(':').next()),
            field
        );
    }
}
