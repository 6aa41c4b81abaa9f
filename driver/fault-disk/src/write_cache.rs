//! The write cache of a disk: what was written since the last flush.

use std::collections::VecDeque;

use crate::aligned_buffer::{ALIGNMENT, AlignedBuffer};
use crate::draw::Draws;
use crate::fuse_message::LARGEST_OPERATION;
use crate::image::Zeroing;
use crate::{Error, Result};

/// The smallest cache: it has room for some of the largest writes.
pub(crate) const SMALLEST: usize = 8 * LARGEST_OPERATION;
const LARGEST: usize = 1 << 30;

/// Writes that a power cut loses, the oldest first.
#[derive(Debug)]
pub(crate) struct WriteCache {
    /// The data of the writes, each in one piece.
    ring: AlignedBuffer,
    /// Where the next one begins, unless it fits only at the begin of the ring.
    end: usize,
    /// The bytes of the ring in use.
    used: usize,
    writes: VecDeque<CachedWrite>,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct CachedWrite {
    offset: u64,
    len: u64,
    content: Content,
    /// The bytes of the ring that it takes, with those that were left out before it.
    takes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    /// Where the data is in the ring.
    Data(usize),
    Zeroes(Zeroing),
}

/// A write that is not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unflushed<'c> {
    Data(&'c [u8]),
    Zeroes(u64, Zeroing),
}

impl WriteCache {
    pub(crate) fn new(bytes: usize) -> Result<WriteCache> {
        if !(SMALLEST..=LARGEST).contains(&bytes) || !bytes.is_multiple_of(ALIGNMENT) {
            let reason = format!(
                "{bytes} is neither 0 nor a multiple of {ALIGNMENT} from {SMALLEST} to {LARGEST}"
            );
            return Err(Error::invalid("write cache", reason));
        }
        let most = most_writes(bytes);
        let nothing = CachedWrite {
            offset: 0,
            len: 0,
            content: Content::Data(0),
            takes: 0,
        };
        // Writing to them takes their memory now.
        let mut writes = VecDeque::from(vec![nothing; most]);
        writes.clear();
        Ok(WriteCache {
            ring: AlignedBuffer::new(bytes),
            end: 0,
            used: 0,
            writes,
            most,
        })
    }

    /// How much memory a cache of this size takes.
    pub(crate) fn cost(bytes: usize) -> usize {
        AlignedBuffer::cost(bytes) + most_writes(bytes) * size_of::<CachedWrite>()
    }

    /// The bytes of the ring before a write of this length, so that it is in one piece.
    fn left_out(&self, len: usize) -> usize {
        let at_end = self.ring.len() - self.end;
        if len > at_end { at_end } else { 0 }
    }

    /// True if there is room for a write of this length; 0 for zeroes. An empty cache has room for
    /// the largest.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let needed = self.left_out(len) + len.next_multiple_of(ALIGNMENT);
        self.writes.len() < self.most && needed <= self.ring.len() - self.used
    }

    /// Adds a write. There must be room for it.
    pub(crate) fn push(&mut self, offset: u64, data: &[u8]) {
        let left_out = self.left_out(data.len());
        let at = (self.end + left_out) % self.ring.len();
        let len = data.len().next_multiple_of(ALIGNMENT);
        self.ring[at..][..data.len()].copy_from_slice(data);
        self.end = (at + len) % self.ring.len();
        self.used += left_out + len;
        self.writes.push_back(CachedWrite {
            offset,
            len: data.len() as u64,
            content: Content::Data(at),
            takes: left_out + len,
        });
    }

    /// Adds zeroes. There must be room for them.
    pub(crate) fn push_zeroes(&mut self, offset: u64, len: u64, zeroing: Zeroing) {
        self.writes.push_back(CachedWrite {
            offset,
            len,
            content: Content::Zeroes(zeroing),
            takes: 0,
        });
    }

    fn unflushed(&self, write: &CachedWrite) -> Unflushed<'_> {
        match write.content {
            Content::Data(at) => {
                let len = usize::try_from(write.len).unwrap_or_default();
                Unflushed::Data(&self.ring[at..][..len])
            }
            Content::Zeroes(zeroing) => Unflushed::Zeroes(write.len, zeroing),
        }
    }

    /// The oldest write, and where it belongs.
    pub(crate) fn oldest(&self) -> Option<(u64, Unflushed<'_>)> {
        let write = self.writes.front()?;
        Some((write.offset, self.unflushed(write)))
    }

    pub(crate) fn drop_oldest(&mut self) {
        let Some(write) = self.writes.pop_front() else {
            return;
        };
        self.used -= write.takes;
        if self.used == 0 {
            self.end = 0;
        }
    }

    /// All writes, and where they belong.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Unflushed<'_>)> {
        self.writes
            .iter()
            .map(|write| (write.offset, self.unflushed(write)))
    }

    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Puts the writes into another order. Afterwards the cache can only be read and cleared.
    pub(crate) fn shuffle(&mut self, draws: &mut Draws) {
        for last in (1..self.writes.len()).rev() {
            self.writes.swap(last, draws.below(last + 1));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.writes.clear();
        self.end = 0;
        self.used = 0;
    }

    /// Brings bytes that were read from the image up to date.
    pub(crate) fn overlay(&self, bytes: &mut [u8], offset: u64) {
        let end = offset + bytes.len() as u64;
        for (at, write) in self.iter() {
            let len = match write {
                Unflushed::Data(data) => data.len() as u64,
                Unflushed::Zeroes(len, _) => len,
            };
            let (from, to) = (at.max(offset), at.saturating_add(len).min(end));
            if from >= to {
                continue;
            }
            let target = &mut bytes[place(from - offset)..place(to - offset)];
            match write {
                Unflushed::Data(data) => {
                    target.copy_from_slice(&data[place(from - at)..place(to - at)]);
                }
                Unflushed::Zeroes(..) => target.fill(0),
            }
        }
    }
}

/// A place in a slice that has it.
fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// As many as there are blocks, and some zeroes.
fn most_writes(bytes: usize) -> usize {
    bytes / ALIGNMENT + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(byte: u8) -> Vec<u8> {
        vec![byte; ALIGNMENT]
    }

    #[test]
    fn a_read_sees_the_newest_write() {
        let mut cache = WriteCache::new(SMALLEST).unwrap();
        cache.push(0, &block(1));
        cache.push(4096, &[block(2), block(3)].concat());
        cache.push(4096, &block(4));
        cache.push_zeroes(8192, 4096, Zeroing::Punch);
        cache.push(8192 + 1024, &[5; 512]);
        // Offset and length → the bytes at its begin, and at 1024 from there.
        let table = [
            (0, 4096, 1, 1),
            (4096, 4096, 4, 4),
            (8192, 4096, 0, 5),
            (3072, 4096, 1, 4),
            (12_288, 4096, 9, 9),
        ];
        for (offset, len, first, later) in table {
            let mut bytes = vec![9; len];
            cache.overlay(&mut bytes, offset);
            assert_eq!((bytes[0], bytes[1024]), (first, later), "{offset}");
        }
    }

    #[test]
    fn a_full_cache_makes_room_by_its_oldest_writes() {
        let mut cache = WriteCache::new(SMALLEST).unwrap();
        let mut flushed = Vec::new();
        let lens = [1, 32, 7, 30, 32, 3, 31];
        for (number, blocks) in lens.into_iter().cycle().take(500).enumerate() {
            let data = vec![number as u8; blocks * ALIGNMENT];
            while !cache.has_room(data.len()) {
                let (offset, write) = cache.oldest().expect("an empty cache has room");
                let Unflushed::Data(data) = write else {
                    panic!("no zeroes were written");
                };
                assert!(data.iter().all(|byte| *byte == offset as u8), "{offset}");
                flushed.push(offset);
                cache.drop_oldest();
            }
            cache.push(number as u64, &data);
            assert!(cache.used <= SMALLEST, "{number}");
        }
        flushed.extend(cache.iter().map(|(offset, _)| offset));
        assert_eq!(flushed, Vec::from_iter(0..500), "each write once, in order");
    }

    #[test]
    fn zeroes_take_places_too() {
        let mut cache = WriteCache::new(SMALLEST).unwrap();
        while cache.has_room(0) {
            cache.push_zeroes(0, 4096, Zeroing::Keep);
        }
        assert_eq!(cache.len(), most_writes(SMALLEST));
        cache.drop_oldest();
        assert!(cache.has_room(ALIGNMENT));
    }

    #[test]
    fn a_cache_has_a_size() {
        for (bytes, is_right) in [
            (0, false),
            (SMALLEST, true),
            (SMALLEST + 512, false),
            (LARGEST + ALIGNMENT, false),
        ] {
            assert_eq!(WriteCache::new(bytes).is_ok(), is_right, "{bytes}");
        }
    }
}
