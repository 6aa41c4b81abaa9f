//! Memory for direct I/O.

use std::ops::{Deref, DerefMut};

/// The unit of direct I/O, which is right for disks of any sectors, and for reflinked files of XFS.
pub(crate) const ALIGNMENT: usize = 4096;

/// Bytes that begin at a multiple of [`ALIGNMENT`]. Each page has been written to: using them
/// takes no more memory.
#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    pub(crate) fn new(len: usize) -> AlignedBuffer {
        // Bytes of 0 would only be promised.
        let bytes = vec![0xff; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        AlignedBuffer { bytes, start, len }
    }

    /// How much memory a buffer of this length takes.
    pub(crate) fn cost(len: usize) -> usize {
        len + ALIGNMENT
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// True if direct I/O can use these bytes at this offset.
pub(crate) fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    bytes.as_ptr().align_offset(ALIGNMENT) == 0
        && bytes.len().is_multiple_of(ALIGNMENT)
        && offset.is_multiple_of(ALIGNMENT as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_at_a_page() {
        for len in [1, 4096, 5000] {
            let mut buffer = AlignedBuffer::new(len);
            buffer[len - 1] = 7;
            assert_eq!((buffer.len(), buffer[len - 1]), (len, 7));
            assert_eq!(is_aligned(&buffer, 8192), len == 4096, "{len}");
            assert!(!is_aligned(&buffer, 512), "{len}");
        }
    }
}
