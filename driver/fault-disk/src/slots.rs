//! The memory of requests.

use parking_lot::{Condvar, Mutex};

use crate::aligned_buffer::AlignedBuffer;
use crate::fuse_message::{HEAD, LARGEST_OPERATION};

/// The memory of one request: of its head and of its data, apart, so that the data is aligned.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) head: Box<[u8; HEAD]>,
    pub(crate) data: AlignedBuffer,
}

/// The free ones of a fixed number of slots.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Mutex<Vec<Slot>>,
    freed: Condvar,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Slots {
        let slots = (0..count).map(|_| Slot {
            head: Box::new([0; HEAD]),
            data: AlignedBuffer::new(LARGEST_OPERATION),
        });
        Slots {
            free: Mutex::new(slots.collect()),
            freed: Condvar::new(),
        }
    }

    /// How much memory so many slots take.
    pub(crate) fn cost(count: usize) -> usize {
        count * (HEAD + AlignedBuffer::cost(LARGEST_OPERATION))
    }

    /// Waits for a free slot, and takes it.
    pub(crate) fn take(&self) -> Slot {
        let mut free = self.free.lock();
        loop {
            if let Some(slot) = free.pop() {
                return slot;
            }
            self.freed.wait(&mut free);
        }
    }

    pub(crate) fn give(&self, slot: Slot) {
        self.free.lock().push(slot);
        self.freed.notify_one();
    }
}
