//! Converts runs of bytes to CSI's `BlockMetadata` tuples.

use hostloop_proto::csi::{BlockMetadata, BlockMetadataType};

use crate::controller::MetadataBlocks;
use crate::csi::int64;
use crate::kernel::BLOCK_SIZE;
use crate::kernel::extents::ByteRange;

/// The maximum number of tuples in a message, even if the caller allows more: about 30 KiB.
const MAX_TUPLES: usize = 1024;

/// The form of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    fixed: bool,
    /// Tuples are multiples of this, in bytes; fixed tuples have this size.
    unit: u64,
    /// Size of the snapshot in bytes.
    capacity: u64,
}

impl Style {
    /// The style for a snapshot of this size. Fixed blocks are the largest ones that divide both
    /// the configured size and the snapshot's. The last block must be neither shorter nor reach
    /// past the end.
    pub(super) fn new(blocks: MetadataBlocks, capacity: u64) -> Style {
        let (fixed, unit) = match blocks {
            MetadataBlocks::Fixed(size) => (true, common_divisor(u64::from(size), capacity)),
            MetadataBlocks::Variable => (false, u64::from(BLOCK_SIZE)),
        };
        Style {
            fixed,
            unit: unit.max(1),
            capacity,
        }
    }

    /// `block_metadata_type`.
    pub(super) fn block_type(&self) -> i32 {
        let style = if self.fixed {
            BlockMetadataType::FixedLength
        } else {
            BlockMetadataType::VariableLength
        };
        style.into()
    }

    /// `volume_capacity_bytes`.
    pub(super) fn capacity(&self) -> i64 {
        int64(self.capacity)
    }

    /// The range to read: from the block that contains `start` to the end.
    pub(super) fn span(&self, start: u64) -> ByteRange {
        let offset = start - start % self.unit;
        ByteRange {
            offset,
            length: self.capacity.saturating_sub(offset),
        }
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Collects ordered runs and sends them as tuples, a message at a time.
pub(super) struct Tuples<'a> {
    style: Style,
    max: usize,
    send: &'a mut dyn FnMut(Vec<BlockMetadata>) -> bool,
    /// The last run, which the next one may continue.
    run: Option<ByteRange>,
    message: Vec<BlockMetadata>,
    sent: bool,
    /// True while the caller receives messages.
    open: bool,
}

impl<'a> Tuples<'a> {
    /// Sends at most `max` tuples per message; 0 uses the driver's maximum. `send` returns false
    /// once the caller hangs up.
    pub(super) fn new(
        style: Style,
        max: usize,
        send: &'a mut dyn FnMut(Vec<BlockMetadata>) -> bool,
    ) -> Self {
        let max = if max == 0 { MAX_TUPLES } else { max };
        Tuples {
            style,
            max: max.min(MAX_TUPLES),
            send,
            run: None,
            message: Vec::new(),
            sent: false,
            open: true,
        }
    }

    /// Adds the next run, which starts at or behind the end of the last; false once the caller
    /// hangs up.
    pub(super) fn add(&mut self, run: ByteRange) -> bool {
        let unit = self.style.unit;
        let offset = run.offset - run.offset % unit;
        let end = run.end().next_multiple_of(unit).min(self.style.capacity);
        match &mut self.run {
            // Two runs that touch the same block become one as well.
            Some(last) if offset <= last.end() => {
                last.length = last.length.max(end - last.offset);
                true
            }
            last => {
                let length = end - offset;
                last.replace(ByteRange { offset, length })
                    .is_none_or(|done| self.put(done))
            }
        }
    }

    /// Sends the remaining tuples, or one empty message if there were none at all.
    pub(super) fn finish(mut self) {
        if let Some(run) = self.run.take() {
            self.put(run);
        }
        if self.open && (!self.message.is_empty() || !self.sent) {
            self.flush();
        }
    }

    fn put(&mut self, run: ByteRange) -> bool {
        let size = if self.style.fixed {
            self.style.unit
        } else {
            run.length
        };
        let step = usize::try_from(size).unwrap_or(usize::MAX);
        for offset in (run.offset..run.end()).step_by(step) {
            if !self.open {
                break;
            }
            self.message.push(BlockMetadata {
                byte_offset: int64(offset),
                size_bytes: int64(size),
            });
            if self.message.len() == self.max {
                self.flush();
            }
        }
        self.open
    }

    fn flush(&mut self) {
        self.sent = true;
        self.open = (self.send)(std::mem::take(&mut self.message));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const K: u64 = 4096;

    fn messages(style: Style, max: usize, runs: &[(u64, u64)]) -> Vec<Vec<(i64, i64)>> {
        let mut messages = Vec::new();
        let mut send = |m: Vec<BlockMetadata>| {
            messages.push(m.iter().map(|b| (b.byte_offset, b.size_bytes)).collect());
            true
        };
        let mut tuples = Tuples::new(style, max, &mut send);
        for &(offset, length) in runs {
            assert!(tuples.add(ByteRange { offset, length }));
        }
        tuples.finish();
        messages
    }

    #[rstest]
    #[case::divides(16 * K as u32, 64 * K, 16 * K)]
    #[case::odd_size(16 * K as u32, 65 * K, K)]
    #[case::half_way(16 * K as u32, 24 * K, 8 * K)]
    #[case::larger_than_the_volume(1 << 20, 8 * K, 8 * K)]
    fn fixed_blocks_fit(#[case] size: u32, #[case] capacity: u64, #[case] unit: u64) {
        let style = Style::new(MetadataBlocks::Fixed(size), capacity);
        assert_eq!(style.unit, unit);
        assert_eq!(capacity % style.unit, 0);
        assert_eq!(
            style.block_type(),
            i32::from(BlockMetadataType::FixedLength)
        );
    }

    #[test]
    fn a_span_begins_with_the_block_the_offset_is_in() {
        let fixed = Style::new(MetadataBlocks::Fixed(4 * K as u32), 64 * K);
        let span = |start| (fixed.span(start).offset / K, fixed.span(start).end() / K);
        assert_eq!(span(0), (0, 64));
        assert_eq!(span(4 * K - 1), (0, 64));
        assert_eq!(span(4 * K), (4, 64));
        assert_eq!(span(64 * K), (64, 64));
        let variable = Style::new(MetadataBlocks::Variable, 64 * K);
        assert_eq!(
            variable.span(K + 1),
            ByteRange {
                offset: K,
                length: 63 * K
            }
        );
    }

    #[test]
    fn nothing_is_one_message() {
        let style = Style::new(MetadataBlocks::Variable, 64 * K);
        assert_eq!(messages(style, 0, &[]), [[]]);
    }

    #[test]
    fn runs_are_joined_rounded_and_split_into_messages() {
        let k = K as i64;
        let variable = Style::new(MetadataBlocks::Variable, 64 * K);
        let runs = [
            (0, K),
            (K, 2 * K),
            (5 * K + 512, 100),
            (5 * K + 1024, K),
            (9 * K, K),
        ];
        let joined = [(0, 3 * k), (5 * k, 2 * k), (9 * k, k)];
        assert_eq!(messages(variable, 0, &runs), [&joined[..]]);
        assert_eq!(messages(variable, 2, &runs), [&joined[..2], &joined[2..]]);

        let fixed = Style::new(MetadataBlocks::Fixed(2 * K as u32), 64 * K);
        let blocks: Vec<(i64, i64)> = [0, 2, 4, 6, 8].map(|b| (b * k, 2 * k)).to_vec();
        assert_eq!(messages(fixed, 0, &runs), [&blocks[..]]);
        let fives: Vec<&[(i64, i64)]> = blocks.chunks(5).collect();
        assert_eq!(
            messages(fixed, 5, &runs),
            fives,
            "no empty message at the end"
        );
    }

    #[test]
    fn no_message_is_larger_than_ours() {
        let style = Style::new(MetadataBlocks::Fixed(K as u32), 4096 * K);
        let sent = messages(style, usize::MAX, &[(0, 4096 * K)]);
        assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [1024; 4]);
    }

    #[test]
    fn sending_ends_when_the_caller_hangs_up() {
        let mut calls = 0;
        let mut send = |_| {
            calls += 1;
            calls < 3
        };
        let style = Style::new(MetadataBlocks::Fixed(K as u32), 4096 * K);
        let mut tuples = Tuples::new(style, 1, &mut send);
        assert!(tuples.add(ByteRange {
            offset: 0,
            length: 100 * K
        }));
        assert!(!tuples.add(ByteRange {
            offset: 200 * K,
            length: K
        }));
        tuples.finish();
        assert_eq!(calls, 3);
    }

    proptest! {
        #[test]
        fn tuples_cover_the_runs(
            gaps in prop::collection::vec((0u64..40_000, 1u64..40_000), 0..40),
            blocks in prop_oneof![
                Just(MetadataBlocks::Variable),
                (1u32..20).prop_map(|n| MetadataBlocks::Fixed(n * 4096)),
            ],
            spare in 0u64..20,
            max in 0usize..10,
        ) {
            let mut runs = Vec::new();
            let mut at = 0;
            for (gap, length) in gaps {
                runs.push((at + gap, length));
                at += gap + length;
            }
            let style = Style::new(blocks, at.next_multiple_of(K) + (spare + 1) * K);
            let sent = messages(style, max, &runs);
            let limit = if max == 0 { MAX_TUPLES } else { max };
            prop_assert!(sent.iter().all(|m| m.len() <= limit));
            prop_assert!(sent.len() == 1 || sent.iter().all(|m| !m.is_empty()));
            let all: Vec<(u64, u64)> =
                sent.concat().iter().map(|t| (t.0 as u64, t.1 as u64)).collect();
            for pair in all.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            }
            let unit = style.unit;
            for &(offset, size) in &all {
                prop_assert!(size > 0 && offset % unit == 0 && size % unit == 0);
                prop_assert!(!style.fixed || size == unit);
                prop_assert!(offset + size <= style.capacity);
                let touched = runs.iter().any(|r| r.0 < offset + size && offset < r.0 + r.1);
                prop_assert!(touched, "{offset} is in no run");
            }
            for (offset, length) in runs {
                let covered: u64 = all
                    .iter()
                    .map(|t| (t.0 + t.1).min(offset + length).saturating_sub(t.0.max(offset)))
                    .sum();
                prop_assert_eq!(covered, length);
            }
        }
    }
}
