//! Ranges of a volume's bytes, as the service of changed blocks lists them.

use hostloop_proto::snapshot_metadata::BlockMetadata;

/// Ranges with a smaller gap between them are copied as one. A copy of a range costs more than that.
const GAP: u64 = 64 << 10;
/// The largest block of dd.
const LARGEST: u32 = 20;

/// Bytes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u64,
    /// At least 1.
    pub(super) length: u64,
}

impl Range {
    /// The size of the blocks with which dd copies it, its first block, and their number.
    pub(super) fn blocks(self) -> [u64; 3] {
        let shift = (self.offset | self.length).trailing_zeros().min(LARGEST);
        [1 << shift, self.offset >> shift, self.length >> shift]
    }
}

/// What the service has listed so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// The size of the volume. A service that lists nothing may not say it.
    pub(super) size: Option<u64>,
    /// The ranges, in order, without those that are only a gap apart.
    pub(super) ranges: Vec<Range>,
    /// The end of the last range that was listed.
    pub(super) end: u64,
}

impl Listing {
    /// Adds a message. The error says why it can't be right: a wrong list would make a wrong backup.
    pub(super) fn add(&mut self, size: i64, blocks: &[BlockMetadata]) -> Result<(), String> {
        let size = match u64::try_from(size) {
            Ok(size) if size > 0 && self.size.is_none_or(|known| known == size) => size,
            _ => return Err(format!("a volume of {size} bytes")),
        };
        self.size = Some(size);
        for block in blocks {
            self.add_block(size, block)?;
        }
        Ok(())
    }

    fn add_block(&mut self, size: u64, block: &BlockMetadata) -> Result<(), String> {
        // A call that goes on may begin with a block that was listed in part.
        let Some((offset, end)) = bounds(block).filter(|(_, end)| *end > self.end && *end <= size)
        else {
            return Err(format!(
                "{} bytes at {} of {size} follow the range that ends at {}",
                block.size_bytes, block.byte_offset, self.end
            ));
        };
        let from = offset.max(self.end);
        self.end = end;
        match self.ranges.last_mut() {
            Some(last) if from - (last.offset + last.length) < GAP => {
                last.length = end - last.offset;
            }
            _ => self.ranges.push(Range {
                offset: from,
                length: end - from,
            }),
        }
        Ok(())
    }

    /// True if no range can follow. A call behind the end of the volume would be refused.
    pub(super) fn is_at_the_end(&self) -> bool {
        self.size == Some(self.end)
    }

    /// The bytes of all ranges.
    pub(super) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.length).sum()
    }
}

/// The offset and the end of a block that has bytes.
fn bounds(block: &BlockMetadata) -> Option<(u64, u64)> {
    let offset = u64::try_from(block.byte_offset).ok()?;
    let length = u64::try_from(block.size_bytes).ok()?;
    let end = offset.checked_add(length)?;
    (length > 0).then_some((offset, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(blocks: &[(i64, i64)]) -> Vec<BlockMetadata> {
        let blocks = blocks.iter();
        blocks
            .map(|(offset, size)| BlockMetadata {
                byte_offset: *offset,
                size_bytes: *size,
            })
            .collect()
    }

    #[test]
    fn lists_of_a_service() {
        const FAR: i64 = 1 << 20;
        for (messages, expected) in [
            (vec![], Some(vec![])),
            (vec![vec![]], Some(vec![])),
            (vec![vec![(0, 4096)]], Some(vec![(0, 4096)])),
            // Ranges that touch, and a small gap.
            (
                vec![vec![(0, 4096), (4096, 4096)], vec![(16384, 4096)]],
                Some(vec![(0, 20480)]),
            ),
            (
                vec![vec![(0, 4096)], vec![(FAR, 4096)]],
                Some(vec![(0, 4096), (1 << 20, 4096)]),
            ),
            (
                vec![vec![(0, 65536), (131_072, 1)]],
                Some(vec![(0, 65536), (131_072, 1)]),
            ),
            // The second call begins within a block.
            (
                vec![vec![(FAR, 4096)], vec![(FAR, 8192)]],
                Some(vec![(1 << 20, 8192)]),
            ),
            (vec![vec![(4096, 4096), (0, 4096)]], None),
            (vec![vec![(4096, 4096), (4096, 4096)]], None),
            (vec![vec![(0, 0)]], None),
            (vec![vec![(-1, 4096)]], None),
            (vec![vec![(0, -1)]], None),
            (vec![vec![(2 * FAR - 4096, 4097)]], None),
            (vec![vec![(i64::MAX, i64::MAX)]], None),
        ] {
            let mut listing = Listing::default();
            let added = messages
                .iter()
                .try_for_each(|message| listing.add(2 * FAR, &blocks(message)));
            let found = listing.ranges.iter().map(|one| (one.offset, one.length));
            let found: Vec<(u64, u64)> = found.collect();
            assert_eq!(added.ok().map(|()| found), expected, "{messages:?}");
        }
    }

    #[test]
    fn sizes_of_a_volume() {
        for (sizes, is_right) in [
            (&[4096, 4096][..], true),
            (&[4096, 8192], false),
            (&[0], false),
            (&[-1], false),
        ] {
            let mut listing = Listing::default();
            let added = sizes.iter().try_for_each(|size| listing.add(*size, &[]));
            assert_eq!(added.is_ok(), is_right, "{sizes:?}");
        }
    }

    #[test]
    fn blocks_of_dd() {
        for (offset, length, expected) in [
            (0, 4096, [4096, 0, 1]),
            (8192, 12288, [4096, 2, 3]),
            (1 << 20, 3 << 20, [1 << 20, 1, 3]),
            (0, 1 << 30, [1 << 20, 0, 1024]),
            (512, 1024, [512, 1, 2]),
            (3, 5, [1, 3, 5]),
        ] {
            let range = Range { offset, length };
            assert_eq!(range.blocks(), expected, "{range:?}");
            let [size, first, number] = range.blocks();
            assert_eq!((size * first, size * number), (offset, length));
        }
    }
}
